"""`stratalog pipeline …` as it is typed: on Spark, killed in the middle, for programs, and without the extra."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("pyiceberg", reason=NO_PIPELINE)

from stratalog.model.errors import InvalidRequest
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_cli.pipeline import command as pipeline_command
from stratalog_pipeline.jobs.columns.table_layout import TableFormat
from stratalog_pipeline.jobs.tables.table_places import table_place
from stratalog_pipeline.sending.login import login_with
from support.archived_logs import read_table
from support.archived_tables import DAY_MS, FIRST_TIME_MS, add_segment, batch_of, json_value
from support.cold_data import ColdShard
from support.hostile_batches import with_header_times
from support.waiting import eventually_sync


def fill(folder: Path, *, segments: int) -> str:
    """Segments of 20 flights."""

    async def put() -> None:
        store = open_store(str(folder))
        cold = ColdShard(store)
        for start in range(0, 20 * segments, 20):
            values = [json_value(number) for number in range(start, start + 20)]
            await add_segment(cold, [values[:10], values[10:]])
        await store.close()

    asyncio.run(put())
    return str(folder)


_OTHER_FORMATS = [form for form in TableFormat if form is not TableFormat.DELTA]

DAMAGED = (
    r"stratalog: cold-test/data/\S+\.chunk: at byte \d+: .*; the object holds records of offsets \d+ to \d+ of shard 3 "
    r"of topic cold\. 'stratalog pipeline verify --repair' restores it from a copy or a node's files"
)


def flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 4
    path.write_bytes(body)


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return fill(tmp_path / "bucket", segments=12)


def run_json(*arguments: str) -> Any:
    """One after another, in this process."""
    result = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", *arguments, "--output", "json"])
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stratalog_cli.entry", "pipeline", *arguments, "--output", "json"]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


class TestOnSpark:
    pytestmark = needs_spark

    @pytest.mark.fault("archive-killed-run-twice")
    @pytest.mark.parametrize(
        "form", [TableFormat.DELTA, *(pytest.param(one, marks=pytest.mark.slow) for one in _OTHER_FORMATS)]
    )
    def test_a_driver_that_is_killed_midway_leaves_the_same_table_after_the_next_run(
        self, spark: Any, tmp_path: Path, form: TableFormat
    ) -> None:
        """48 segments. Spark processes four at a time, so the first files exist long before the last ones."""
        bucket, table = fill(tmp_path / "bucket", segments=48), tmp_path / "table"
        archive = ("archive", "cold", "--bucket", bucket, "--to", str(table), "--format", form)
        first = start(*archive, "--threads", "1", log=tmp_path / "log")
        try:
            data = table / "cold" / "data"
            eventually_sync(lambda: any(data.rglob("*.parquet")) or first.poll() is not None, timeout=120)
            is_running = first.poll() is None
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
        made = {file.name.rpartition("-")[0] for file in data.rglob("*.parquet")}
        done = [*table.rglob("*.done.json")]
        assert is_running and made, (tmp_path / "log").read_text()
        assert len(made) < 48 and len(done) < 48, "it was killed in the middle"
        again = run_json(*archive, "--threads", "0")
        assert (again["already"], again["segments"], again["format"]) == (len(done), 48 - len(done), form)
        rows = spark.read.parquet(str(data)).select("_offset", "flight").collect()
        assert sorted((row._offset, row.flight) for row in rows) == [(n, n) for n in range(960)]
        rows = read_table(form, table_place(str(table)), "cold")
        assert [(row["_offset"], row["flight"]) for row in rows] == [(n, n) for n in range(960)]

    @pytest.mark.fault("job-pipeline-damaged-object")
    def test_damage_is_one_line_and_not_a_traceback(self, tmp_path: Path) -> None:
        bucket = fill(tmp_path / "bucket", segments=2)
        flip(next((tmp_path / "bucket").rglob("*.chunk")))
        job = ("archive", "cold", "--bucket", bucket, "--to", str(tmp_path / "to"))
        running = start(*job, "--threads", "1", log=tmp_path / "log")
        try:
            eventually_sync(lambda: running.poll() is not None, timeout=120)
        finally:
            running.kill()
        assert running.wait() == 1
        lines = (tmp_path / "log").read_text().splitlines()
        assert not any("Traceback" in line or "PythonException" in line for line in lines), lines
        assert re.fullmatch(DAMAGED, lines[-1]), lines[-1]


@pytest.mark.fault("job-pipeline-damaged-object")
@pytest.mark.parametrize("job", [("archive", "cold"), ("export",)])
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_job_that_meets_damage_says_where_and_what_to_do(tmp_path: Path, job: tuple[str, ...], damage: str) -> None:
    """A chunk that was gone ended with exit code 2, as if the command had been wrong."""
    bucket = fill(tmp_path / "bucket", segments=2)
    broken = next((tmp_path / "bucket").rglob("*.chunk"))
    flip(broken) if damage == "flipped" else broken.unlink()
    words = ["pipeline", *job, "--bucket", bucket, "--to", str(tmp_path / "to"), "--threads", "0"]
    ran = CliRunner().invoke(build_app(("pipeline",)), words)
    assert ran.exit_code == 1
    line = ran.stderr.strip()
    assert re.fullmatch(DAMAGED, line), line
    assert broken.name in line


def test_every_job_answers_programs(bucket: str, tmp_path: Path) -> None:
    assert run_json("verify", "--bucket", bucket, "--threads", "0")["segments"] == 12
    out = str(tmp_path / "out")
    assert (
        run_json("export", "--bucket", bucket, "--to", out, "--from-offset", "230", "--threads", "0")["records"] == 10
    )
    prices, plot = tmp_path / "prices.json", tmp_path / "cost.svg"
    prices.write_text('{"bucket_gib_month": 0.023, "put_per_1000": 0.005, "get_per_1000": 0.0004}')
    told = run_json("cost", "--bucket", bucket, "--prices", str(prices), "--plot", str(plot))
    assert told["rows"][0]["topic"] == "cold" and plot.read_text().startswith("<svg")
    dry = run_json("archive", "cold", "--bucket", bucket, "--to", str(tmp_path / "t"), "--dry-run")
    assert (dry["segments"], dry["is_dry_run"], (tmp_path / "t").exists()) == (12, True, False)


@pytest.mark.parametrize(
    "max_ms", [-1, FIRST_TIME_MS + 1, FIRST_TIME_MS + 400 * DAY_MS], ids=["none", "partial", "future"]
)
def test_an_export_by_time_goes_by_the_records_whatever_headers_say(tmp_path: Path, max_ms: int) -> None:
    """Ten records a day for six days. With -1 in the headers it wrote no row, with exit code 0."""

    async def put() -> None:
        store = open_store(str(tmp_path / "bucket"))
        cold = ColdShard(store)
        for epoch in range(3):
            values = [json_value(number) for number in range(20 * epoch, 20 * epoch + 20)]
            batches = [
                batch_of(20 * epoch, values[:10], epoch=epoch),
                batch_of(20 * epoch + 10, values[10:], epoch=epoch),
            ]
            await cold.add([[with_header_times(batch, max_ms=max_ms)] for batch in batches])
        await store.close()

    asyncio.run(put())
    since, until = FIRST_TIME_MS + 2 * DAY_MS, FIRST_TIME_MS + 3 * DAY_MS
    asked = ("--bucket", str(tmp_path / "bucket"), "--threads", "0", "--from-ms", str(since))
    assert run_json("export", *asked, "--to", str(tmp_path / "from"))["records"] == 40
    assert run_json("export", *asked, "--to-ms", str(until), "--to", str(tmp_path / "day"))["records"] == 10
    rows = [json.loads(line) for file in (tmp_path / "day").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(row["offset"] for row in rows) == list(range(20, 30))


def test_people_are_reported_what_was_done_and_of_a_dry_run_what_would_be(bucket: str, tmp_path: Path) -> None:
    def words(*arguments: str) -> str:
        result = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", *arguments, "--bucket", bucket])
        assert result.exit_code == 0, result.output
        return result.stdout

    export = ("export", "--to", str(tmp_path / "out"), "--threads", "0")
    archive = ("archive", "cold", "--to", str(tmp_path / "table"), "--threads", "0")
    assert words(*export, "--dry-run").startswith("would be exported")
    assert words(*archive, "--dry-run").startswith("would be archived: cold")
    said = [words(*export), words(*archive), words("verify", "--threads", "0")]
    assert [one.split()[0].rstrip(":") for one in said] == ["exported", "archived", "verified"]
    for one in said:
        assert "dry run" not in one and "False" not in one


def test_a_damaged_bucket_ends_with_findings(bucket: str) -> None:
    chunk = next(Path(bucket).rglob("*.chunk"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    result = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", "verify", "--bucket", bucket, "--threads", "0"])
    assert result.exit_code == 1
    assert "1 finding" in result.output


def test_what_cannot_be_meant_is_refused_in_a_line(bucket: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"flight": "number"}')
    command = ["pipeline", "archive", "cold", "--bucket", bucket, "--to", str(tmp_path / "t"), "--threads", "0"]
    result = CliRunner().invoke(build_app(("pipeline",)), [*command, "--schema", str(schema)])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "'number' is not a type" in result.output
    result = CliRunner().invoke(build_app(("pipeline",)), [*command, "--kind", "avro"])
    assert "--schema FILE is missing" in result.output


def test_a_secret_of_the_client_is_read_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hush\n")
    settings, files = pipeline_command._client_settings(["acks=all", f"sasl.password=@{secret}"])
    assert login_with("", dict(settings), files).of_librdkafka() == {"acks": "all", "sasl.password": "hush"}
    with pytest.raises(InvalidRequest, match=r"the file of sasl.password, .*/none, cannot be read"):
        login_with("", {}, [("sasl.password", f"{tmp_path}/none")]).of_librdkafka()


@pytest.mark.parametrize(("form", "package"), [("delta", "deltalake"), ("iceberg", "pyiceberg")])
def test_without_the_package_of_a_format_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, form: str, package: str
) -> None:
    monkeypatch.setattr(pipeline_command, "find_spec", lambda name: None if name == package else object())
    command = ["pipeline", "archive", "cold", "--bucket", "/nowhere", "--to", "/nowhere", "--format", form]
    result = CliRunner().invoke(build_app(("pipeline",)), command)
    assert result.exit_code == 2
    assert (
        f"packages that this job needs are not installed ({package}): pip install -r requirements/pipeline.txt"
        in result.output
    )


def test_without_the_extra_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_command, "find_spec", lambda name: None)
    result = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", "verify", "--bucket", "/nowhere"])
    assert result.exit_code == 2
    assert "pip install -r requirements/pipeline.txt" in result.output


WITHOUT_PYSPARK = (
    "import sys; sys.modules['pyspark'] = None; "  # import and find_spec do not find it then
    "from stratalog_cli.entry import main; main()"
)


def run_without_pyspark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_PYSPARK, "pipeline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "job", [("archive", "cold", "--to"), ("export", "--to"), ("verify",), ("cost",)], ids=lambda job: str(job[0])
)
def test_a_job_without_spark_needs_no_pyspark(bucket: str, tmp_path: Path, job: tuple[str, ...]) -> None:
    arguments = [*job, str(tmp_path / "to")] if job[-1] == "--to" else [*job]
    threads = [] if job == ("cost",) else ["--threads", "0"]
    done = run_without_pyspark(*arguments, "--bucket", bucket, *threads)
    assert done.returncode == 0, done.stderr


def test_a_job_on_spark_without_pyspark_is_refused_and_says_what_works(bucket: str) -> None:
    done = run_without_pyspark("verify", "--bucket", bucket)
    assert done.returncode == 2
    assert "not installed (pyspark)" in done.stderr
    assert "--threads 0 does this job without pyspark" in done.stderr
