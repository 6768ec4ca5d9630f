"""`stratalog pipeline sink --to postgres` into a real PostgreSQL: each committed record is a row once, whatever
happens."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE
from support.postgres_servers import NO_POSTGRES, PASSWORD, PostgresServer, postgres_folder, postgres_server

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("psycopg", reason=NO_POSTGRES)

from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.jobs.runners import one_by_one
from stratalog_pipeline.jobs.sinks import postgres
from stratalog_pipeline.jobs.sinks.postgres import PostgresTarget
from stratalog_pipeline.jobs.sinks.sink import sink_piece
from stratalog_pipeline.jobs.sinks.target import PASSWORD_VARIABLE, TargetAddress, TargetKind
from support.certificates import Certificates, make_certificates
from support.cold_data import FIRST_TIME_MS, ColdShard, batches_from
from support.hostile_batches import GARBAGE, claiming
from support.sunk_records import SinkPlace, batch_of, killed_at, record_at

pytestmark = [pytest.mark.real_postgres, pytest.mark.timeout(120)]
TABLE = "cold"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[PostgresServer]:
    if postgres_folder() is None:
        pytest.skip(NO_POSTGRES)
    with postgres_server(certificates) as server:
        yield server


class Place(SinkPlace):
    """With a schema of its own in the database."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.server = server
        self.schema = f"s{uuid4().hex[:12]}"
        server.query(f"CREATE SCHEMA {self.schema}")
        super().__init__(folder, TargetAddress(TargetKind.POSTGRES, server.url(), f"{self.schema}.{TABLE}"))

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.server.query(statement.replace("~", f"{self.schema}."), "postgres", *values)

    def offsets(self) -> list[int]:
        return [row[0] for row in self.query('SELECT "offset" FROM ~cold ORDER BY 1')]

    def progress(self) -> list[tuple[Any, ...]]:
        return self.query("SELECT shard, next_offset FROM ~stratalog_sink_progress WHERE next_offset > 0")


@pytest.fixture
def place(tmp_path: Path, server: PostgresServer) -> Place:
    return Place(tmp_path, server)


async def run(place: Place, **options: Any) -> Any:
    return await asyncio.to_thread(place.sink, **options)


async def test_each_record_is_a_row_with_all_that_it_is(place: Place) -> None:
    await place.fill(10, 10)
    await place.fill(10)
    told = await run(place)
    assert (told.records, told.pieces, told.pieces_there, told.lacks, told.retries) == (30, 3, 0, [], 0)
    rows = place.query('SELECT topic, shard, "offset", "time", key, value, headers FROM ~cold ORDER BY "offset"')
    for offset, row in enumerate(rows):
        record = record_at(offset)
        at = datetime.fromtimestamp(FIRST_TIME_MS / 1_000, UTC) + timedelta(milliseconds=offset)
        assert row[:6] == ("cold", 3, offset, at, record.key, record.value)
        assert len(row[6]) == len(record.headers)
    assert rows[1][6] == [
        {"key": "trace", "value": "1"},
        {"key": "raw", "value_base64": "gA=="},
        {"key": "trace", "value": None},
        {"key": "nul", "value_base64": "YQBi"},
    ]
    assert len(rows) == 30


async def test_a_later_run_stores_what_came_since_and_one_without_news_stores_nothing(place: Place) -> None:
    await place.fill(10)
    await run(place)
    again = await run(place)
    assert (again.records, again.pieces) == (0, 0)
    await place.fill(5, 5)
    assert (await run(place, piece_bytes=1 << 20)).records == 10
    assert place.offsets() == list(range(20))
    assert place.progress() == [(3, 20)]


async def test_a_dry_run_counts_and_changes_nothing(place: Place) -> None:
    await place.fill(10)
    told = await run(place, is_dry_run=True)
    assert (told.pieces, told.records) == (1, 0)
    assert place.query("SELECT count(*) FROM pg_tables WHERE schemaname = %s", place.schema) == [(0,)]
    await run(place)
    await place.fill(10)
    assert (await run(place, is_dry_run=True)).pieces == 1
    assert place.progress() == [(3, 10)]


@pytest.mark.fault("sink-gap")
async def test_records_that_retention_took_first_are_an_error_and_then_a_gap_that_each_run_reports(
    place: Place,
) -> None:
    await place.fill(10)
    await run(place)
    await place.fill(10)
    await place.fill(10)
    await place.expire(2)
    for is_dry_run in (False, True):
        with pytest.raises(GapInLog, match=r"offsets 10 to 20 of shard 3 of topic cold are gone.*--on-gap report"):
            await run(place, is_dry_run=is_dry_run)
    assert place.progress() == [(3, 10)]
    for records in (10, 0):
        told = await run(place, is_gap_allowed=True)
        assert told.records == records
        (lack,) = told.lacks
        assert (lack.shard, lack.from_offset, lack.to_offset) == (3, 10, 20)
    assert place.offsets() == [*range(10), *range(20, 30)]


async def test_what_was_gone_before_the_table_was_made_was_never_promised(place: Place) -> None:
    await place.fill(10)
    await place.fill(10)
    await place.expire(1)
    assert (await run(place)).lacks == []
    assert place.offsets() == list(range(10, 20))


@pytest.mark.fault("sink-of-another-topic")
async def test_a_table_of_something_else_is_refused_and_stays(place: Place) -> None:
    await place.fill(10)
    await run(place)
    name = f"table {place.schema}.cold"
    for column, value, words in (
        ("topic_id", uuid4(), "was deleted and created again"),
        ("cluster_id", "other", "cluster 'other', not of 'cold-test'"),
        ("topic", "other", "topic other, not of cold"),
    ):
        ((before,),) = place.query(f"SELECT {column} FROM ~stratalog_sinks")
        place.query(f"UPDATE ~stratalog_sinks SET {column} = %s", value)
        for is_dry_run in (False, True):
            with pytest.raises(Conflict, match=words) as refused:
                await run(place, is_dry_run=is_dry_run)
            assert name in str(refused.value)
        place.query(f"UPDATE ~stratalog_sinks SET {column} = %s", before)
    assert (await run(place)).records == 0
    place.query("DROP TABLE ~cold")
    with pytest.raises(Conflict, match=r"was dropped.*delete the rows of 'cold'"):
        await run(place)


@pytest.mark.fault("sink-of-another-topic")
async def test_a_table_that_no_sink_wrote_is_refused_unless_it_is_empty(place: Place) -> None:
    await place.fill(10)
    place.query(
        'CREATE TABLE ~cold (topic text, shard integer, "offset" bigint, "time" timestamptz, key bytea, value bytea, '
        "headers jsonb, mine text DEFAULT 'x')"
    )
    place.query("INSERT INTO ~cold (topic) VALUES ('mine')")
    with pytest.raises(Conflict, match="has rows, and no sink wrote them"):
        await run(place)
    place.query("DELETE FROM ~cold")
    await run(place)
    assert place.query("SELECT count(*), min(mine) FROM ~cold") == [(10, "x")]


@pytest.mark.fault("sink-ahead-of-the-bucket")
async def test_progress_ahead_of_the_bucket_is_refused(place: Place) -> None:
    """An older copy of the bucket was put back: what comes under these offsets may be other records."""
    await place.fill(10)
    await run(place)
    place.query("UPDATE ~stratalog_sink_progress SET next_offset = 12 WHERE shard = 3")
    with pytest.raises(GapInLog, match=r"committed up to offset 12, and now is up to 10.*older than postgres"):
        await run(place)


@pytest.mark.fault("sink-ahead-of-the-bucket")
async def test_rows_behind_the_progress_are_refused_by_the_table_itself(place: Place) -> None:
    """Someone turned the progress back: no row comes twice."""
    await place.fill(10)
    await run(place)
    place.query("UPDATE ~stratalog_sink_progress SET next_offset = 4 WHERE shard = 3")
    with pytest.raises(Conflict, match="something else wrote to the table"):
        await run(place)
    assert place.offsets() == list(range(10))


async def test_a_batch_that_cannot_be_read_is_named_and_stays_named(place: Place) -> None:
    def with_garbage(base: int, count: int, epoch: int) -> bytes:
        if base != 4:
            return batch_of(base, count, epoch)
        return claiming(GARBAGE, count, FIRST_TIME_MS, base_offset=base)

    await place.fill(4, 2, 4, batch=with_garbage)
    told = await run(place)
    assert told.records == 8
    assert "shard 3, offsets 4 to 6: the batch cannot be read" in told.unread[0]
    later = await run(place)
    assert later.unread == []
    assert [(one.from_offset, one.to_offset) for one in later.lacks] == [(4, 6)]
    assert place.offsets() == [*range(4), *range(6, 10)]


# Whatever happens ---------------------------------------------------------------------------------------------------
@pytest.mark.fault("sink-run-twice")
async def test_two_jobs_at_the_same_time_store_each_record_once(place: Place) -> None:
    """They are cut differently, and each waits for the other's transaction at the start."""
    await place.fill(*[5] * 8)
    ready = threading.Barrier(2)

    def together(work: Callable[[Any], Any], pieces: Any) -> Iterator[Any]:
        if pieces[0].wanted.from_offset == 0:
            ready.wait(60)
        return one_by_one(work, pieces)

    jobs = [asyncio.to_thread(place.sink, together, piece_bytes=size) for size in (1, 1 << 20)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert not [one for one in results if isinstance(one, BaseException)]
    assert sum(one.records for one in results if not isinstance(one, BaseException)) == 40
    assert place.offsets() == list(range(40))
    assert place.progress() == [(3, 40)]


class _LosesCommits:
    """A connection of which the first commits are lost, or their answers are."""

    def __init__(self, connection: Any, left: list[bool]) -> None:
        self._connection, self._left = connection, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        import psycopg

        if self._left:
            if self._left.pop():
                self._connection.commit()
            self._connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        self._connection.commit()


@pytest.mark.fault("sink-killed")
@pytest.mark.parametrize("was_committed", [True, False])
async def test_a_commit_whose_answer_is_lost_stores_each_record_once(place: Place, was_committed: bool) -> None:
    await place.fill(10, 10)
    left = [was_committed]

    class Losing(PostgresTarget):
        def __enter__(self) -> PostgresTarget:
            super().__enter__()
            self._connection = _LosesCommits(self._connection, left)
            return self

    def run_pieces(work: Any, pieces: Any) -> Iterator[Any]:
        return (sink_piece(piece, Losing, lambda _: None) for piece in pieces)

    told = await asyncio.to_thread(place.sink, run_pieces)
    assert (told.retries, told.pieces_there) == (1, int(was_committed))
    assert told.records == 20 - 10 * was_committed
    assert place.offsets() == list(range(20))


async def test_a_server_that_is_silent_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "REQUEST_S", 0.1)
    with PostgresTarget(place.address) as target, pytest.raises(Unavailable), postgres._errors():
        target._execute("SELECT pg_sleep(100)")


@pytest.mark.slow
@pytest.mark.fault("sink-killed")
async def test_a_job_that_is_killed_between_any_two_steps_leaves_each_record_once(
    tmp_path: Path, server: PostgresServer
) -> None:
    """Each statement, each write of a COPY, and both sides of each COMMIT are a step."""
    step, is_killed = 0, True
    while is_killed:
        step += 1
        place = Place(tmp_path / str(step), server)
        await place.fill(5, 5)
        await place.fill(5)
        is_killed = await asyncio.to_thread(killed_at, step, place.options(), with_steps)
        if place.query("SELECT to_regclass(%s)", f"{place.schema}.cold") != [(None,)]:
            ends = dict(place.progress()).get(3, 0)
            assert place.offsets() == list(range(ends)), f"killed at step {step}"
        told = await run(place)
        assert place.offsets() == list(range(15)), f"killed at step {step}"
        assert told.lacks == []
        await place.cold.store.close()
    assert step > 40


def with_steps(step: Callable[[], None]) -> None:
    """For a process of its own."""

    class Stepping(PostgresTarget):
        def __enter__(self) -> PostgresTarget:
            super().__enter__()
            self._connection = _Steps(self._connection, step)
            return self

    def rows(table: Any) -> bytes:
        step()
        return postgres_rows(table)

    postgres_rows = postgres.encode_rows
    postgres.encode_rows = rows
    postgres.PostgresTarget = Stepping  # type: ignore[misc]


class _Steps:
    def __init__(self, connection: Any, step: Callable[[], None]) -> None:
        self._connection, self._step = connection, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, *arguments: Any) -> Any:
        self._step()
        return self._connection.execute(*arguments)

    def commit(self) -> None:
        self._step()
        self._connection.commit()
        self._step()


# TLS, logins, and the command ---------------------------------------------------------------------------------------
def over_tls(place: Place, more: str = "", **address: str) -> TargetAddress:
    return replace(place.address, url=place.server.tls_url(more=more), **address)


@pytest.mark.fault("sink-login")
async def test_the_servers_certificate_is_verified_and_the_password_comes_from_a_file_or_the_environment(
    place: Place, tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.fill(10)
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    known = {"password_file": str(file), "ca_file": str(certificates.ca)}
    place.address = over_tls(place, **{**known, "ca_file": ""})
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await run(place)
    place.address = over_tls(place, "?sslmode=disable", **known)
    with pytest.raises(Unavailable, match="no pg_hba"):
        await run(place)
    place.address = over_tls(place, **{**known, "password_file": ""})
    with pytest.raises(Unavailable, match="no password"):
        await run(place)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    assert (await run(place)).records == 10
    monkeypatch.delenv(PASSWORD_VARIABLE)
    place.address = over_tls(place, **known)
    await place.fill(10)
    assert (await run(place)).records == 10


def command(place: Place, *arguments: str) -> Any:
    common = ("--bucket", place.bucket, "--to", "postgres", "--url", place.address.url, "--threads", "0")
    words = ["pipeline", "sink", "cold", *common, "--table", place.address.name, *arguments]
    return CliRunner().invoke(build_app(("pipeline",)), words)


async def test_the_command_reports_as_other_jobs_do(place: Place) -> None:
    await place.fill(10, 10)
    dry = await asyncio.to_thread(command, place, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "would be stored: cold" in dry.output
    result = await asyncio.to_thread(command, place, "--output", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {name: told[name] for name in ("topic", "target", "records", "lacks", "unread")} == {
        "topic": "cold",
        "target": "postgres",
        "records": 20,
        "lacks": [],
        "unread": [],
    }
    place.query("UPDATE ~stratalog_sinks SET topic_id = %s", UUID(int=1))
    refused = await asyncio.to_thread(command, place)
    assert refused.exit_code != 0
    assert refused.output.count("\n") == 1


async def test_a_shard_that_came_later_is_stored_from_its_beginning(place: Place) -> None:
    await place.fill(10)
    await run(place)
    other = ColdShard(open_store(place.bucket), topic_id=place.cold.topic_id, shard=4)
    await other.add([batches_from(0, 2)])
    await other.store.close()
    assert (await run(place)).records == 6
    assert sorted(place.progress()) == [(3, 10), (4, 6)]


def test_an_address_that_cannot_be_used_is_refused_in_words(place: Place, tmp_path: Path) -> None:
    for change, words in (
        ({"url": "mysql://h/d"}, r"postgresql://HOST"),
        ({"url": "postgresql://u:secret@h/d"}, f"--password-file FILE, or set {PASSWORD_VARIABLE}"),
        ({"url": "postgresql://u@h/d?nonsense=1"}, r"postgresql://HOST"),
        ({"password_file": str(tmp_path / "none")}, "--password-file .*none cannot be read"),
        ({"name": "x" * 64}, "cuts names behind 63 bytes"),
        ({"name": "stratalog_sinks"}, "where sinks keep their progress"),
    ):
        with pytest.raises(InvalidRequest, match=words) as refused:
            PostgresTarget(replace(place.address, **change))
        assert "secret" not in str(refused.value)
