"""Each record of the metadata comes back from the store with every field that it has.

A new field with a default would be lost without an error if its encoding were forgotten. So each sample here sets every
field to another value than its default, which a test checks, and the round trip compares all of them.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import Any
from uuid import UUID

import pytest

from stratalog.machines.table import records as table_records
from stratalog.model.ids import SegmentKey
from stratalog.model.listeners import Listener
from stratalog.model.metadata import Lock, NodeInfo
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange, Volume
from stratalog.model.parts import PartList
from stratalog.model.producers import ProducerTally
from stratalog.model.quotas import EntityQuotas, QuotaEntity, QuotaLimits
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import (
    Doubt,
    GapReason,
    GivenUp,
    Handover,
    NextReplicas,
    RemoteCopy,
    RemotePart,
    RemoteState,
    ReplicaReport,
    SealRecord,
    Segment,
    SegmentState,
    TimesKnown,
    Vote,
)
from stratalog.model.storage_policy import StoragePolicy
from stratalog.model.topic import Topic
from stratalog.stored.encoding import decode, encode

KEY = SegmentKey(UUID(int=7), 3, 2, 40)
PART = RemotePart("cluster/data/one.chunk", 512, 99, 40, 50)
TALLY = ProducerTally(5, b"\x05" * 16, 6, 7)
SEAL = SealRecord(2, 40, 60, 1_000, 2_000, 321, b"\x01" * 16, TALLY, (1, 2), 3_000, TimesKnown.ALL)
HANDOVER = Handover(
    NextReplicas(2, (2, 3), StoragePolicy.DIRECT),
    (Doubt(1, True, True),),
    (Vote(2, 4, 55, 50, True, 45),),
    3,
    (ReplicaReport(2, 300, b"\x02" * 16),),
    (GivenUp(50, 60, GapReason.RESTARTED),),
    True,
)
REMOTE = RemoteCopy(RemoteState.PARTIAL, 50, PartList((PART,)), "cluster/one.manifest", b"\x03" * 16, 99, 4_000)
SEGMENT = Segment(
    KEY, SegmentState.DELETED, 1, (1, 2), (2,), 9, 500, 60, SEAL, (2,), REMOTE, 5_000, 3, HANDOVER, StoragePolicy.DIRECT
)
TOPIC = Topic("flights", UUID(int=7), 4, 2, {"retention.ms": "-1"}, 100, True, 200, 300)
INFO = NodeInfo(1, "disk-1", "host", 9092, "rack-1", (Listener("outside", "name", 9093),), False)
RETIREMENT = Retirement("disk-1", RetireMode.OFFLOAD, RetireStep.PREFLIGHT, 1, 1)
NODE = table_records.NodeEntry(
    INFO, 4, False, "start", 11, "boot", False, RETIREMENT, 2, True, 3, False, "seat", False, ("a start before",)
)
MOUNTED = MountedTopic(UUID(int=8), "old", (OffsetRange(1, 2),))
VOLUME = Volume("host", 9094, "start")
MOUNT = Mount(
    "tier/1", MountMode.VOLUME, 1, "disk-1", MountState.SERVING, 2, 3, "rack", 4, 5, VOLUME, (MOUNTED,), 6, True
)
RESOURCE = Resource(ResourceType.GROUP, "Gruppe-\x00-ß", PatternType.PREFIXED)
RULE = Rule(RESOURCE, "User:CN=a,O=b", "10.0.0.1", Operation.READ, Permission.DENY)
KEYS = ScramCredential(b"salt", b"\x01" * 64, b"\x02" * 64, 8_192)
CREDENTIAL = UserCredential("Änne\x00", ScramMechanism.SCRAM_SHA_512, KEYS)
ENTITY = QuotaEntity("Änne\x00", "", "10.0.0.1")
LIMITS = QuotaLimits(1.0, 2.0, 0.5, 4.0, 5.0)
LOCK = Lock("tier/1", "node-1/4", 6, 7_000, ("node-1/3",))


def stored(*writes: table_records.TableWrite) -> list[table_records.StoredRecord]:
    items: list[tuple[bytes, bytes]] = []
    for key, value in (item for write in writes for item in encode([write])):
        assert value is not None
        items.append((key, value))
    return list(decode(sorted(items), "test"))


def left_at_default(record: Any) -> list[str]:
    """The fields of a dataclass or named tuple that have their default value."""
    if isinstance(record, tuple):
        defaults = getattr(record, "_field_defaults", {})
    else:
        defaults = {one.name: one.default for one in fields(record) if one.default is not MISSING}
        defaults |= {one.name: one.default_factory() for one in fields(record) if one.default_factory is not MISSING}
    return [name for name, default in defaults.items() if getattr(record, name) == default]


@pytest.mark.parametrize(
    "sample",
    [
        SEAL,
        SEGMENT,
        REMOTE,
        PART,
        HANDOVER,
        HANDOVER.prepared,
        *HANDOVER.doubts,
        *HANDOVER.votes,
        TOPIC,
        INFO,
        NODE,
        LOCK,
        MOUNT,
        RESOURCE,
        ENTITY,
        LIMITS,
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_a_sample_sets_every_field(sample: object) -> None:
    assert not left_at_default(sample), "set these fields in the sample, so that the round trip compares them"


def test_a_segment_comes_back_whole() -> None:
    writes = (
        table_records.PutSegmentHead(SEGMENT),
        table_records.PutSeal(KEY, SEAL),
        table_records.PutPart(KEY, PART),
    )
    assert stored(*writes) == [SEGMENT]


def test_a_seal_record_of_an_older_release_has_the_default_of_the_field_that_it_lacks() -> None:
    """Releases before `times_known` wrote the same array without its last entry."""
    writes = (table_records.PutSegmentHead(SEGMENT), table_records.PutSeal(KEY, SEAL), table_records.PutPart(KEY, PART))
    items = {key: value for write in writes for key, value in encode([write])}
    ((seal_key, value),) = encode([table_records.PutSeal(KEY, SEAL)])
    assert value is not None
    entries = json.loads(value)
    assert entries.pop() == SEAL.times_known
    items[seal_key] = json.dumps(entries).encode()
    (found,) = decode(sorted((key, value or b"") for key, value in items.items()), "test")
    assert found == replace(SEGMENT, seal=replace(SEAL, times_known=TimesKnown.CLAIMED))


@pytest.mark.parametrize(
    ("write", "record"),
    [
        (table_records.PutTopic(TOPIC), TOPIC),
        (table_records.PutNode(NODE), NODE),
        (table_records.PutLock(LOCK), LOCK),
        (table_records.PutMount(MOUNT), MOUNT),
        (table_records.PutRule(RULE), RULE),
        (table_records.PutCredential(CREDENTIAL), CREDENTIAL),
        (table_records.PutQuotas(EntityQuotas(ENTITY, LIMITS)), EntityQuotas(ENTITY, LIMITS)),
    ],
    ids=["topic", "node", "lock", "mount", "rule", "credential", "quotas"],
)
def test_a_record_comes_back_whole(write: table_records.TableWrite, record: table_records.StoredRecord) -> None:
    assert stored(write) == [record]
