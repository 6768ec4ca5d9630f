"""Hypothesis strategies for what the stored formats hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

from hypothesis import strategies as st

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.key_index import KEY_PAGE_BYTES, KEY_PAGE_ENTRIES, MAX_KEY_RUN_ENTRIES, KeyRun
from stratalog.formats.segments.index_block import IndexPoint, IndexPoints
from stratalog.formats.segments.producers import encode_table, tally_of
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import BatchMemo, ProducerRule, ProducerSnapshot, ProducerTally
from stratalog.model.segment import SealRecord, SegmentIdentity, TimesKnown

I32_MAX, I64_MAX = 2**31 - 1, 2**63 - 1

offsets = st.one_of(st.integers(0, 10_000), st.integers(0, I64_MAX - 2**40))
times = st.one_of(st.just(-1), st.integers(0, 2_000_000_000_000))
naturals32 = st.integers(0, I32_MAX)
naturals = st.integers(0, I64_MAX)
digests = st.binary(min_size=16, max_size=16)
uuids = st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
topic_names = st.text("abcXYZ019._-", min_size=1, max_size=249)
cluster_ids = st.text(min_size=0, max_size=64).filter(lambda text: _utf8_size(text) <= 64)
object_keys = st.text(st.characters(codec="utf-8"), max_size=200)

identities = st.builds(
    SegmentIdentity,
    cluster_id=cluster_ids,
    topic_id=uuids,
    topic=topic_names,
    shard=naturals32,
    epoch=naturals32,
    base_offset=offsets,
    created_ms=times,
)
keys = st.builds(SegmentKey, topic_id=uuids, shard=naturals32, epoch=naturals32, base_offset=offsets)

memos = st.builds(
    BatchMemo,
    first_sequence=st.integers(-1, I32_MAX),
    last_sequence=st.integers(-1, I32_MAX),
    base_offset=naturals,
    timestamp_ms=times,
)
producers = st.lists(
    st.builds(
        ProducerSnapshot,
        producer_id=naturals,
        producer_epoch=st.integers(-1, 2**15 - 1),
        last_append_ms=times,
        batches=st.lists(memos, max_size=5).map(tuple),
    ),
    max_size=6,
    unique_by=lambda producer: producer.producer_id,
).map(lambda found: tuple(sorted(found)))


@st.composite
def tallies(draw: st.DrawFn) -> tuple[ProducerTally, bytes]:
    """With the table that it speaks of."""
    table = draw(producers)
    rule = ProducerRule(draw(st.integers(0, 2**63 - 1)), draw(st.integers(0, 2**63 - 1)))
    encoded = encode_table(table)
    return tally_of(table, encoded, rule), encoded


@st.composite
def seals(draw: st.DrawFn, identity: SegmentIdentity, tally: ProducerTally | None = None) -> SealRecord:
    count = draw(st.integers(0, 2**40))
    return SealRecord(
        epoch=identity.epoch,
        base_offset=identity.base_offset,
        end_offset=identity.base_offset + count,
        first_timestamp_ms=draw(times),
        max_timestamp_ms=draw(times),
        size_bytes=draw(st.integers(1, 2**40)) if count else 0,
        digest=draw(digests),
        producers=tally or draw(tallies())[0],
        replicas=tuple(draw(st.lists(naturals32, max_size=5))),
        sealed_ms=draw(times),
        times_known=draw(st.sampled_from(TimesKnown)),
    )


@st.composite
def points_within(draw: st.DrawFn, base: int, end: int, size_bytes: int, max_timestamp_ms: int) -> IndexPoints:
    """Valid points of a log that covers offsets `[base, end)` in `size_bytes`."""
    room = min(end - base - 1, size_bytes - 1, 20)
    if room < 1:
        return IndexPoints(has_true_times=True)
    count = draw(st.integers(0, room))
    at = sorted(draw(st.sets(st.integers(base + 1, end - 1), min_size=count, max_size=count)))
    positions = sorted(draw(st.sets(st.integers(1, size_bytes - 1), min_size=count, max_size=count)))
    stamps = sorted(draw(st.lists(st.integers(-1, max_timestamp_ms), min_size=count, max_size=count)))
    return IndexPoints((IndexPoint(*point) for point in zip(at, positions, stamps, strict=True)), has_true_times=True)


@st.composite
def key_runs(draw: st.DrawFn, cuts: Sequence[int]) -> tuple[KeyRun, ...]:
    """Over the offsets between these."""
    found = []
    for start, end in pairwise(cuts):
        buckets = draw(st.integers(1, 2**20))
        entries = draw(st.integers(0, min(MAX_KEY_RUN_ENTRIES, buckets * KEY_PAGE_ENTRIES)))
        size = buckets * KEY_PAGE_BYTES + draw(st.integers(0, 2**30))
        found.append(KeyRun(draw(object_keys), size, draw(digests), buckets, entries, start, end))
    return tuple(found)


record_values = st.one_of(st.none(), st.binary(max_size=60))
records = st.builds(
    Record,
    offset=st.just(-1),
    timestamp_ms=times,
    key=record_values,
    value=record_values,
    headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), record_values), max_size=3).map(
        tuple
    ),
)


@st.composite
def batch_runs(draw: st.DrawFn, *, base_offset: int, epoch: int, max_batches: int = 6) -> list[bytes]:
    """Batches that follow each other, of any codec, with times that rise and fall."""
    found: list[bytes] = []
    for _ in range(draw(st.integers(1, max_batches))):
        inside = draw(st.lists(records, min_size=1, max_size=4))
        found.append(
            encode_batch(
                inside,
                base_offset=base_offset,
                epoch=epoch,
                compression=draw(st.integers(0, 4)),
                is_log_append_time=draw(st.booleans()),
            )
        )
        base_offset += len(inside)
    return found


def _utf8_size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 1 << 30
