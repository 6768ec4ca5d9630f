"""Fetches at the limits of an answer (KIP-74): the same partitions and requests for Apache Kafka and for a node.

Partitions 0 and 1 have twenty batches of UNIT bytes each, 2 has three batches of three small records, 3 has none, 4 has
one batch of some thirty units and then a small one. Limits are such that Kafka's answers hold no part of a batch that
would take the room of a later partition: a node sends whole batches alone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from support import kafka_oracle
from support.raw_client import FETCH_VERSION, RawClient, batch_of

PARTITIONS = 5
UNIT_BATCH = batch_of(bytes(10_000))
UNIT = len(UNIT_BATCH)
_SMALL, _LARGE = batch_of(b"a", b"b", b"c"), batch_of(bytes(300_000))
_CONTENT = {0: [UNIT_BATCH] * 20, 1: [UNIT_BATCH] * 20, 2: [_SMALL] * 3, 4: [_LARGE, _SMALL]}
_AMPLE = 1 << 20


class From(NamedTuple):
    """An entry of a request."""

    partition: int
    offset: int = 0
    most_bytes: int = _AMPLE


class Limits(NamedTuple):
    """A request."""

    entries: Sequence[From]
    max_bytes: int = 10 * _AMPLE
    min_bytes: int = 1
    max_wait_ms: int = 0


REQUESTS = {
    "everything": Limits([From(number) for number in range(PARTITIONS)]),
    "an answer of nothing": Limits([From(0), From(1)], max_bytes=0),
    "an answer of one byte": Limits([From(1), From(0)], max_bytes=1),
    "the first batch alone is above the answer": Limits([From(4), From(0), From(2)], max_bytes=2 * UNIT),
    "the first batch is as large as the answer": Limits([From(0), From(1)], max_bytes=UNIT),
    "the second is above what is left": Limits([From(0, most_bytes=UNIT), From(4), From(1)], max_bytes=2 * UNIT),
    "a small one behind one that does not fit": Limits(
        [From(0, most_bytes=UNIT), From(4, most_bytes=UNIT), From(2)], max_bytes=2 * UNIT
    ),
    "partitions of nothing": Limits([From(0, most_bytes=0), From(1, most_bytes=0)]),
    "partitions of one byte": Limits([From(0, most_bytes=1), From(1, most_bytes=1), From(2, most_bytes=1)]),
    "the second batch is above its partition": Limits([From(2), From(4, most_bytes=UNIT), From(0, most_bytes=UNIT)]),
    "the first batch is above its partition": Limits([From(4, most_bytes=UNIT), From(0, most_bytes=2 * UNIT)]),
    "partitions are filled in order": Limits([From(1, most_bytes=3 * UNIT), From(0)], max_bytes=5 * UNIT),
    "the first takes the whole answer": Limits([From(0), From(1), From(2)], max_bytes=8 * UNIT),
    "an empty one first": Limits([From(3), From(4, most_bytes=1), From(0, most_bytes=UNIT)], max_bytes=40 * UNIT),
    "one at its end first": Limits([From(0, 20), From(3), From(1, 5)], max_bytes=1),
    "inside a batch": Limits([From(2, 4)]),
    "below min.bytes": Limits([From(2), From(3)], min_bytes=_AMPLE, max_wait_ms=50),
    "min.bytes are reached by the second": Limits([From(2), From(0), From(1)], min_bytes=UNIT, max_wait_ms=50),
    "min.bytes above the answer": Limits([From(0), From(1)], max_bytes=UNIT, min_bytes=_AMPLE, max_wait_ms=50),
    "an offset out of range first": Limits([From(0, 99), From(1, most_bytes=UNIT)], max_bytes=1),
    "an offset out of range, and min.bytes": Limits([From(0, 99), From(2)], min_bytes=_AMPLE, max_wait_ms=60_000),
    "a partition that does not exist": Limits([From(9), From(2)], min_bytes=_AMPLE, max_wait_ms=50),
}


def fill(bootstrap: str, topic: str) -> None:
    with RawClient(bootstrap) as client:
        for partition, batches in _CONTENT.items():
            for batch in batches:
                assert client.produce(topic, batch, partition=partition).error_code == 0


def answers(bootstrap: str, topic: str) -> dict[str, list[list[int]]]:
    """To each request."""
    with RawClient(bootstrap) as client:
        return {name: fetch(client, topic, limits) for name, limits in REQUESTS.items()}


def fetch(client: RawClient, topic: str, limits: Limits) -> list[list[int]]:
    """Of each entry: partition, error code, whole batches, bytes of these."""
    request: Any = kafka_oracle.request_class(1)
    partitions = [
        request.FetchTopic.FetchPartition(
            version=FETCH_VERSION,
            partition=entry.partition,
            current_leader_epoch=-1,
            fetch_offset=entry.offset,
            log_start_offset=-1,
            partition_max_bytes=entry.most_bytes,
        )
        for entry in limits.entries
    ]
    answer = client.call(
        1,
        FETCH_VERSION,
        replica_id=-1,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[request.FetchTopic(version=FETCH_VERSION, topic=topic, partitions=partitions)],
        forgotten_topics_data=[],
        rack_id="",
    )
    found = {one.partition_index: one for one in answer.responses[0].partitions}
    wanted = [found[entry.partition] for entry in limits.entries]
    return [[one.partition_index, one.error_code, *whole_batches(bytes(one.records or b""))] for one in wanted]


def whole_batches(data: bytes) -> tuple[int, int]:
    """How many there are, and their size: Kafka cuts an answer at its limit, often within a batch."""
    count = at = 0
    while at + 12 <= len(data) and (end := at + 12 + struct.unpack_from(">i", data, at + 8)[0]) <= len(data):
        count, at = count + 1, end
    return count, at
