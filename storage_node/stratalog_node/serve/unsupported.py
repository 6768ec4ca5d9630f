"""The parts of the Kafka protocol that this node deliberately does not support, and why. Read it together with the
registry.

Invariant: no API key here is in the registry (a test checks). Missing APIs are not advertised, so that clients see a
plain "unsupported" instead of an error in the middle of their work (trap 4 of docs/kafka.md).
"""

from __future__ import annotations

from typing import NamedTuple


class Unsupported(NamedTuple):
    feature: str
    keys: tuple[int, ...]
    """API keys that are absent for it; empty where only versions or behaviours are."""
    reason: str


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "Transactions",
        (24, 25, 26, 28, 61, 65, 66),
        "Not built yet: they need a coordinator, markers and a last stable offset that lags. InitProducerId refuses a "
        "transactional id (35), FindCoordinator answers 53 for its type. Idempotent producers work in full.",
    ),
    Unsupported(
        "Produce from version 12, Fetch from version 13",
        (),
        "12 means transactions v2, 13 topic ids in place of names; clients take the versions below.",
    ),
    Unsupported(
        "Old message formats",
        (),
        "Produce 0-2 and Fetch 0-3 carry magic 0 and 1, which Kafka 4 dropped too. Produce is advertised from "
        "version 0 anyway (trap 1).",
    ),
    Unsupported(
        "Share groups, streams groups",
        (76, 77, 78, 79, 88, 89),
        "Opt-in in every client, and a client that opts in gets a plain UnsupportedVersion. Classic groups and those "
        "of the consumer protocol are served.",
    ),
    Unsupported(
        "Fetch sessions",
        (),
        "Refused with session id 0: clients then send full lists, which is cheap up to hundreds of partitions.",
    ),
    Unsupported(
        "Compaction by key",
        (),
        "Sealed segments are immutable here, so cleanup.policy=compact is refused (40) rather than ignored.",
    ),
    Unsupported(
        "Compression by the server",
        (),
        "compression.type other than producer would open every batch on the hot path: refused (40).",
    ),
    Unsupported(
        "Replica assignment, reassignment and leader election by clients",
        (34, 43, 45, 46),
        "Segments are placed by the meta service, a leader is never replaced, and sealed data does not move.",
    ),
    Unsupported(
        "Delegation tokens",
        (38, 39, 40, 41),
        "They need authentication.",
    ),
    Unsupported(
        "Client telemetry",
        (71, 72),
        "Advertised, it makes clients push their metrics here.",
    ),
    Unsupported(
        "Metadata by page",
        (75,),
        "Clients fall back to Metadata, whose answer is kept encoded.",
    ),
    Unsupported(
        "Controller and quorum APIs, feature upgrades",
        (55, 57, 74),
        "There is no KRaft quorum; the meta service has its own HTTP interface.",
    ),
    Unsupported(
        "Dynamic settings of a node",
        (),
        "A node's settings are fixed at its start: describing them works, altering them is refused (42).",
    ),
)
