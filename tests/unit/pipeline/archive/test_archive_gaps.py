"""Retention that was faster than the archive: an error that names the offsets, or a gap that the table tells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("deltalake", reason=NO_PIPELINE)

import deltalake

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.errors import Conflict
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import SealRecord
from stratalog.objects import open_store
from stratalog_pipeline.cold.catalog import Catalog
from stratalog_pipeline.cold.committed import CommittedSegment, CommittedShard
from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.jobs.archive.archive import Archived, _sealed
from stratalog_pipeline.jobs.archive.gaps import ShardArchived, missing
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from support.archived_logs import LogPlace, flights
from support.cold_data import ColdShard


@pytest.fixture(params=list(TableFormat))
def place(tmp_path: Path, request: pytest.FixtureRequest) -> LogPlace:
    return LogPlace(tmp_path, request.param)


@pytest.fixture
def files(tmp_path: Path) -> LogPlace:
    return LogPlace(tmp_path, TableFormat.PARQUET)


def told_gaps(told: Archived) -> list[tuple[int, int, int]]:
    return [(one.shard, one.from_offset, one.to_offset) for one in told.gaps]


@pytest.mark.fault("retention-deletes-records-archived")
async def test_records_that_retention_took_before_they_were_archived_are_an_error(place: LogPlace) -> None:
    """F57: archived 0-10, retention took 0-20. What comes behind is not archived as if nothing were missing."""
    cold = await place.fill([flights(0, 10)])
    await place.archive()
    await place.fill([flights(10, 10)], [flights(20, 10)], into=cold)
    await place.expire(cold, 2)
    words = r"offsets 10 to 20 of shard 3 of topic cold are gone.*--on-gap report to continue behind them"
    for _ in range(2):
        with pytest.raises(GapInLog, match=words):
            await place.archive()
    with pytest.raises(GapInLog, match=words):
        await place.archive(is_dry_run=True)
    assert [row["flight"] for row in place.read()] == list(range(10))


@pytest.mark.fault("retention-deletes-records-archived")
async def test_a_gap_that_is_accepted_is_reported_and_stays_reported(place: LogPlace) -> None:
    cold = await place.fill([flights(0, 10)])
    await place.archive()
    await place.fill([flights(10, 10)], [flights(20, 10)], into=cold)
    await place.expire(cold, 2)
    dry = await place.archive(is_gap_allowed=True, is_dry_run=True)
    assert (told_gaps(dry), dry.segments) == ([(3, 10, 20)], 1)
    told = await place.archive(is_gap_allowed=True)
    assert (told_gaps(told), told.rows) == ([(3, 10, 20)], 10)
    assert [row["flight"] for row in place.read()] == [*range(10), *range(20, 30)]
    await place.fill([flights(30, 10)], into=cold)
    later = await place.archive()
    assert (told_gaps(later), later.rows) == ([(3, 10, 20)], 10), "it is no error twice, and not forgotten"


async def test_what_retention_took_after_it_was_archived_is_no_gap(place: LogPlace) -> None:
    cold = await place.fill([flights(0, 10)], [flights(10, 10)])
    await place.archive()
    await place.fill([flights(20, 10)], into=cold)
    await place.expire(cold, 2)
    told = await place.archive()
    assert (told.gaps, told.rows) == ([], 10)
    assert [row["flight"] for row in place.read()] == list(range(30))


async def test_what_was_gone_before_the_table_was_made_was_never_promised(files: LogPlace) -> None:
    cold = await files.fill([flights(0, 10)], [flights(10, 10)])
    await files.expire(cold, 1)
    assert (await files.archive()).gaps == []
    assert (await files.archive()).gaps == []


@pytest.mark.fault("retention-deletes-records-archived")
async def test_a_segment_that_was_planned_and_taken_before_it_was_done_is_a_gap(files: LogPlace) -> None:
    """The plan alone puts no row into the table."""
    cold = await files.fill([flights(0, 10)], [flights(10, 10)])

    def dies(work: Any, pieces: Sequence[Any]) -> Any:
        made = [work(piece) for piece in pieces]
        if not hasattr(made[0], "seal"):
            return iter(made)  # the fields that were found
        raise KeyboardInterrupt

    from stratalog_pipeline.jobs.archive.archive import Archive

    with pytest.raises(KeyboardInterrupt):
        await _in_a_thread(Archive(files.options(), dies).archive)
    assert list(Path(files.target).rglob("*.plan.json")) and not list(Path(files.target).rglob("*.done.json"))
    await files.expire(cold, 1)
    with pytest.raises(GapInLog, match="offsets 0 to 10 of shard 3"):
        await files.archive()
    told = await files.archive(is_gap_allowed=True)
    assert (told_gaps(told), told.rows) == ([(3, 0, 10)], 10)


async def _in_a_thread(work: Any) -> Any:
    import asyncio

    try:
        return await asyncio.to_thread(work)
    except BaseException as error:
        raise error from None


@pytest.mark.fault("retention-deletes-records-archived")
async def test_a_shard_that_came_later_is_promised_from_its_beginning(files: LogPlace) -> None:
    cold = await files.fill([flights(0, 10)])
    await files.archive()
    later = replace(cold, shard=4, segments=[], batches=[])
    await files.fill([flights(0, 10)], [flights(10, 10)], into=later)
    await files.expire(later, 1)
    with pytest.raises(GapInLog, match="offsets 0 to 10 of shard 4"):
        await files.archive()


@pytest.mark.fault("retention-deletes-records-archived")
async def test_a_gap_that_was_accepted_by_a_job_that_died_then_is_reported_by_the_next(files: LogPlace) -> None:
    cold = await files.fill([flights(0, 10)])
    await files.archive()
    await files.fill([flights(10, 10)], [flights(20, 10)], into=cold)
    await files.expire(cold, 2)

    class Killed(Exception):
        pass

    def dies(*_: Any) -> Any:
        raise Killed

    from stratalog_pipeline.jobs.archive.archive import Archive

    with pytest.raises(Killed):
        await _in_a_thread(Archive(files.options(is_gap_allowed=True), dies).archive)
    told = await files.archive()
    assert (told_gaps(told), told.rows) == ([(3, 10, 20)], 10)


@pytest.mark.parametrize(
    ("archived", "log_start", "told", "expected"),
    [
        (ShardArchived(10), 10, [], []),
        (ShardArchived(30), 10, [], []),
        (ShardArchived(10), 20, [], [(10, 20)]),
        (ShardArchived(10), 20, [(10, 20)], []),
        (ShardArchived(10), 30, [(10, 20)], [(20, 30)]),
        (ShardArchived(20, [(10, 20)]), 15, [], [(10, 15)]),
        (ShardArchived(20, [(10, 20)]), 10, [], []),
        (ShardArchived(20, [(10, 20)]), 30, [], [(10, 30)]),
        (ShardArchived(40, [(0, 10), (20, 30)]), 35, [], [(0, 10), (20, 30)]),
        (ShardArchived(40, [(0, 10), (20, 30)]), 35, [(0, 10)], [(20, 30)]),
    ],
)
def test_what_is_missing(
    archived: ShardArchived, log_start: int, told: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert missing(archived, log_start, told) == expected


# After a restore -----------------------------------------------------------------------------------------------------
@pytest.mark.fault("cluster-restored-snapshot-archived")
async def test_a_restored_cluster_gets_a_table_of_its_own(place: LogPlace, tmp_path: Path) -> None:
    """Its records behind the snapshot are others under the same offsets: the old table refuses them, and says what to
    do. Elsewhere all that the restored cluster has is archived."""
    cold = await place.fill([flights(0, 10)], [flights(10, 10)])
    await place.archive()
    store = open_store(place.bucket)
    restored = ColdShard(store, names=ObjectNames("", "restored"), topic_id=cold.topic_id)
    await place.fill([flights(0, 10)], [flights(50, 5)], into=restored)
    await store.close()
    with pytest.raises(Conflict, match=r"restored from a snapshot.*a table of its own \(another --to\)"):
        await place.archive(cluster_id="restored")
    assert [row["flight"] for row in place.read()] == list(range(20)), "the old one stays as it is"
    place.target = str(tmp_path / "restored")
    assert (await place.archive(cluster_id="restored")).rows == 15
    assert [row["flight"] for row in place.read()] == [*range(10), *range(50, 55)]
    assert json.loads(Path(place.target, "cold/_table.json").read_text())["cluster_id"] == "restored"


@pytest.mark.fault("first-archive-killed-table")
async def test_a_table_begins_before_it_is_made_also_where_the_first_job_is_killed(files: LogPlace) -> None:
    """Killed at each of its first puts. What retention takes then is a gap, whichever put was the last."""
    for survives in (1, 2):
        place = LogPlace(Path(files.target).parent / f"killed-{survives}", TableFormat.PARQUET)
        cold = await place.fill([flights(0, 10)], [flights(10, 10)])
        put: list[str] = []
        with pytest.raises((_KilledError, ExceptionGroup)):
            await place.archive(open_target=partial(_Mortal, place.target, survives, put))
        assert len(put) == survives
        await place.expire(cold, 1)
        with pytest.raises(GapInLog, match="offsets 0 to 10"):
            await place.archive()


class _KilledError(Exception):
    pass


class _Mortal:
    """A store whose user dies after a number of puts."""

    def __init__(self, url: str, survives: int, keys: list[str]) -> None:
        self._store, self._survives, self._keys = open_store(url), survives, keys

    async def put(self, key: str, body: Any, storage_class: str = "") -> None:
        if len(self._keys) >= self._survives:
            raise _KilledError(key)
        self._keys.append(key)
        await self._store.put(key, body, storage_class)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.fault("first-archive-killed-table")
async def test_what_waits_for_its_manifest_holds_up_what_is_behind_it() -> None:
    """All its records are in the bucket, and the segment behind it is complete already. If that were archived first,
    retention could take the waiting one, and nothing would tell: a table's end is behind its last planned segment."""

    def segment(number: int, manifest: str | None) -> CommittedSegment:
        key = SegmentKey(UUID(int=1), 0, number, 10 * number)
        return CommittedSegment(key, 10 * number + 10, (), manifest)

    class Told:
        async def parts_of(self, segment: CommittedSegment) -> Any:
            at = (segment.key.epoch, segment.base_offset, segment.end_offset)
            return (), SealRecord(*at, 0, 0, 100, bytes(32), NO_PRODUCERS, (1,), 0)

    segments = (segment(0, "m0"), segment(1, None), segment(2, "m2"))
    shard = CommittedShard(segments[0].key.shard_key, "cold", 0, segments)
    found = await _sealed(cast(Catalog, Told()), [shard])
    assert [one.seal.split("-")[1] for one in found] == [f"{0:020d}"]


@pytest.mark.fault("records-segment-deleted-job")
async def test_a_file_that_was_there_is_reported_with_the_rows_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job put all files and died; then some records of the segment were deleted. Delta counts by its own log."""

    class Dying:
        def prepare(self, _: Any) -> None:
            return None

        def commit(self, _: Any) -> None:
            raise _KilledError

    place = LogPlace(tmp_path, TableFormat.DELTA)
    await place.fill([flights(0, 10)])
    with pytest.raises(_KilledError):
        await place.archive(log=Dying())
    known = Catalog.shards

    async def later(self: Catalog, topics: Any) -> list[CommittedShard]:
        return [replace(one, log_start_offset=5) for one in await known(self, topics)]

    monkeypatch.setattr(Catalog, "shards", later)
    told = await place.archive(is_gap_allowed=True)
    table = deltalake.DeltaTable(Path(place.target, "cold/data"))
    assert sum(table.get_add_actions(flatten=True)["num_records"].to_pylist()) == table.to_pyarrow_table().num_rows
    assert told.rows == len(place.read())
