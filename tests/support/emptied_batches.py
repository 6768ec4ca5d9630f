"""What Apache Kafka answers to a fetch that begins in a batch without records.

Compaction leaves such a batch in the place of a producer's last batch, for its sequence, once later batches have all
its keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from support.raw_client import RawClient
from support.waiting import eventually_sync

_TIME_MS, _SEGMENT_MS = 1_700_000_000_000, 1_000
_PATIENCE_S = 60.0


class Written(NamedTuple):
    keys: str
    is_emptied: bool = False


LAYOUT = (
    Written("abc", is_emptied=True),
    Written("de", is_emptied=True),
    Written("fg"),
    Written("ab", is_emptied=True),
    Written("abcde"),
)
"""In a segment of their own: the one that is written is not compacted, so no log of Kafka ends with such a batch."""
_BEHIND = Written("z")
SEGMENT_END = sum(len(one.keys) for one in LAYOUT)
LIMITS = {"one batch": 1, "all": 1 << 20}


def answers(bootstrap: str, make: Callable[..., str]) -> dict[str, dict[str, list[list[int]]]]:
    """By limit and offset, the batches of an answer: base offset, end offset, records."""
    config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_ms": str(_SEGMENT_MS)}
    topic = make("emptied-batches", **config)
    with RawClient(bootstrap) as client:
        for number, one in enumerate((*LAYOUT, _BEHIND)):
            time_ms = _TIME_MS + 10 * _SEGMENT_MS * (one is _BEHIND)
            records = [Record(NEXT_OFFSET, time_ms, key.encode(), b"v") for key in one.keys]
            data = encode_batch(records, producer_id=100 + number, producer_epoch=0, base_sequence=0)
            assert client.produce(topic, data).error_code == 0
        wanted = [0 if one.is_emptied else len(one.keys) for one in LAYOUT]
        eventually_sync(lambda: [one[2] for one in batches(client, topic, 0, LIMITS["all"])] == wanted, _PATIENCE_S)
        return {
            name: {str(offset): batches(client, topic, offset, limit) for offset in range(SEGMENT_END)}
            for name, limit in LIMITS.items()
        }


def batches(client: RawClient, topic: str, offset: int, limit: int) -> list[list[int]]:
    (answer,) = client.fetch(topic, offset, partition_max_bytes=limit)
    assert answer.error_code == 0
    found = [header for _, header in walk(answer.records, source="answer")]
    return [[one.base_offset, one.end_offset, one.record_count] for one in found]
