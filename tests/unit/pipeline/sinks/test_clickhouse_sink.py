"""`stratalog pipeline sink --to clickhouse`: each committed record is a row once, in ClickHouse's own engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.jobs.sinks.clickhouse import ClickHouseTarget
from stratalog_pipeline.jobs.sinks.http_server import HttpServer
from stratalog_pipeline.jobs.sinks.sink import fixed_first, sink_piece
from stratalog_pipeline.jobs.sinks.target import TargetAddress, TargetKind
from support.cold_data import FIRST_TIME_MS
from support.sunk_records import SinkPlace, killed_at, record_at, with_requests_as_steps

pytestmark = pytest.mark.timeout(600)
REPOSITORY = Path(__file__).resolve().parents[4]
PYTHON = REPOSITORY / ".cache" / "chdb" / "bin" / "python"
NO_CLICKHOUSE = "ClickHouse's engine is not there: run tools/clickhouse.sh"
engine = [pytest.mark.slow, pytest.mark.real_clickhouse]


@dataclass(frozen=True, slots=True)
class Engine:
    url: str

    def rows(self, statement: str) -> list[list[Any]]:
        request = urllib.request.Request(self.url, data=f"{statement} FORMAT JSONCompact".encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: list[list[Any]] = json.loads(answer.read())["data"]
        return found

    def run(self, statement: str) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url, data=statement.encode()), timeout=60).close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if not PYTHON.exists():
        pytest.skip(NO_CLICKHOUSE)
    program = REPOSITORY / "tests" / "support" / "clickhouse_server.py"
    words = [str(PYTHON), str(program), str(tmp_path_factory.mktemp("clickhouse"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Engine(f"http://127.0.0.1:{int(process.stdout.readline())}/")
        process.kill()


class Place(SinkPlace):
    def __init__(self, folder: Path, server: Engine) -> None:
        self.server = server
        self.database = f"d{uuid4().hex[:10]}"
        server.run(f"CREATE DATABASE {self.database} ENGINE = Atomic")
        address = TargetAddress(TargetKind.CLICKHOUSE, server.url.rstrip("/"), f"{self.database}.cold")
        super().__init__(folder, address)

    def rows(self, columns: str) -> list[list[Any]]:
        return self.server.rows(f"SELECT {columns} FROM {self.database}.cold ORDER BY shard, offset")

    def offsets(self) -> list[int]:
        """Without FINAL: a record that was inserted twice is there twice until its parts are merged."""
        return [int(one[0]) for one in self.rows("offset")]


@pytest.fixture
def place(tmp_path: Path, server: Engine) -> Place:
    return Place(tmp_path, server)


async def run(place: Place, **options: Any) -> Any:
    return await asyncio.to_thread(place.sink, **options)


class TestInTheEngine:
    pytestmark = engine

    async def test_each_record_is_a_row_with_all_that_it_is(self, place: Place) -> None:
        await place.fill(10, 10)
        assert (await run(place)).records == 20
        rows = place.rows("topic, shard, toInt64(offset), toUnixTimestamp64Milli(time), hex(key), hex(value), headers")
        for offset, row in enumerate(rows):
            record = record_at(offset)
            hexed = [None if one is None else one.hex().upper() for one in (record.key, record.value)]
            assert [*row[:2], int(row[2]), int(row[3])] == ["cold", 3, offset, FIRST_TIME_MS + offset]
            assert [one or "" for one in row[4:6]] == [one or "" for one in hexed]
            assert len(row[6]) == len(record.headers)
        assert (await run(place)).pieces == 0
        await place.fill(5)
        assert (await run(place, piece_bytes=1 << 20)).records == 5
        assert place.offsets() == list(range(25))

    @pytest.mark.fault("sink-gap")
    async def test_gaps_are_errors_or_are_kept_and_reported(self, place: Place) -> None:
        await place.fill(5)
        await run(place)
        await place.fill(5)
        await place.fill(5)
        await place.expire(2)
        with pytest.raises(GapInLog, match="offsets 5 to 10 of shard 3"):
            await run(place)
        for records in (5, 0):
            told = await run(place, is_gap_allowed=True)
            assert told.records == records
            assert [(one.from_offset, one.to_offset) for one in told.lacks] == [(5, 10)]

    @pytest.mark.fault("sink-of-another-topic")
    async def test_a_table_of_something_else_is_refused(self, place: Place) -> None:
        await place.fill(5)
        books = f"{place.database}.stratalog_sinks"
        await run(place)
        place.server.run(f"ALTER TABLE {books} UPDATE topic_id = generateUUIDv4() WHERE 1 SETTINGS mutations_sync = 2")
        with pytest.raises(Conflict, match="was deleted and created again"):
            await run(place)
        place.server.run(f"TRUNCATE TABLE {books}")
        with pytest.raises(Conflict, match="has rows, and no sink wrote them"):
            await run(place)

    @pytest.mark.fault("sink-run-twice")
    async def test_a_range_is_fixed_by_the_first_job_and_stored_as_it_is(self, place: Place) -> None:
        """The first one ends before it inserts; the second is cut differently."""
        await place.fill(*[3] * 4)

        class Ending(Exception):
            pass

        def ends(work: Any, pieces: Any) -> Iterator[Any]:
            for piece in pieces:
                with ClickHouseTarget(place.address) as target:
                    target._fix(piece.wanted)
                raise Ending
            yield

        with pytest.raises(Ending):
            await asyncio.to_thread(place.sink, ends)
        told = await run(place, piece_bytes=1 << 20)
        assert (told.pieces, told.records) == (2, 12), "the fixed range, and the rest"
        assert place.offsets() == list(range(12))
        with pytest.raises(Conflict, match="another job stores shard 3"), ClickHouseTarget(place.address) as target:
            target._fix(replace(wanted_of(0, 3), to_offset=7))

    @pytest.mark.fault("sink-ahead-of-the-bucket")
    async def test_rows_that_an_insert_did_not_bring_are_noticed(self, place: Place) -> None:
        """Someone emptied the table: its tokens are still known, and an INSERT with one is dropped without a word."""
        await place.fill(5)
        await run(place)
        for table in ("cold", "stratalog_sink_progress"):
            where = f"ALTER TABLE {place.database}.{table} DELETE WHERE 1 SETTINGS mutations_sync = 2"
            place.server.run(where)
        with pytest.raises(Conflict, match="has 0 of the 5 records"):
            await run(place)

    @pytest.mark.fault("sink-ahead-of-the-bucket")
    async def test_records_that_no_fixed_range_explains_are_not_taken_for_a_whole_range(self, place: Place) -> None:
        """The tables with the progress were put back from a backup that is older than the rows."""
        await place.fill(5)
        await run(place)
        await place.fill(5, 5)
        for table in ("stratalog_sink_progress", "stratalog_sink_ranges"):
            where = f"ALTER TABLE {place.database}.{table} DELETE WHERE 1 SETTINGS mutations_sync = 2"
            place.server.run(where)
        for _ in range(2):
            with pytest.raises(Conflict, match="no range that begins there"):
                await run(place, piece_bytes=1 << 20)
        place.server.run(f"ALTER TABLE {place.database}.cold DELETE WHERE 1 SETTINGS mutations_sync = 2")
        assert (await run(place, piece_bytes=1 << 20)).records == 15
        assert place.offsets() == list(range(15))

    @pytest.mark.fault("sink-killed")
    async def test_an_answer_that_is_lost_stores_each_record_once(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await place.fill(5, 5)
        real, left = HttpServer.request, [True]

        def request(self: HttpServer, method: str, path: str, body: bytes = b"", kind: str = "") -> tuple[int, bytes]:
            answer = real(self, method, path, body, kind)
            if "ArrowStream" in path and left:
                left.pop()
                raise Unavailable("no answer")
            return answer

        monkeypatch.setattr(HttpServer, "request", request)

        def patient(work: Any, pieces: Any) -> Iterator[Any]:
            return (sink_piece(piece, sleep=lambda _: None) for piece in pieces)

        told = await asyncio.to_thread(place.sink, patient)
        assert (told.retries, told.pieces_there) == (1, 1)
        assert place.offsets() == list(range(10))

    @pytest.mark.fault("sink-killed")
    async def test_a_job_that_is_killed_between_any_two_requests_leaves_each_record_once(
        self, tmp_path: Path, server: Engine
    ) -> None:
        step, is_killed = 0, True
        while is_killed:
            step += 1
            place = Place(tmp_path / str(step), server)
            await place.fill(4, 4)
            is_killed = await asyncio.to_thread(killed_at, step, place.options(), with_requests_as_steps)
            await run(place, piece_bytes=1 << 20)
            assert place.offsets() == list(range(8)), f"killed at step {step}"
            await place.cold.store.close()
        assert step > 40


def wanted_of(from_offset: int, to_offset: int) -> Any:
    from stratalog_pipeline.jobs.sinks.target import ShardRange

    return ShardRange(3, from_offset, to_offset)


# Without an engine --------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 5))
def test_fixed_ranges_come_first_as_far_as_they_follow_one_another(sizes: list[int], begin: int) -> None:
    ends, at = {}, begin
    for size in sizes:
        ends[at], at = at + size, at + size
    apart = {**ends, at + 1: at + 5}
    found = fixed_first(begin, apart)
    assert found == [*ends.items(), (at, None)]


def test_names_that_cannot_be_a_table_are_refused() -> None:
    address = TargetAddress(TargetKind.CLICKHOUSE, "http://127.0.0.1:8123", "cold")
    for name in ("a`b", "a.b c", "", "d`.cold", "stratalog_sink_ranges"):
        with pytest.raises(InvalidRequest, match="--table"):
            ClickHouseTarget(replace(address, name=name))
