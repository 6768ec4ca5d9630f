"""`stratalog pipeline run` and `results`: a scheduled run leaves one report, whatever becomes of its job."""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.job_report import JobReport, decode_report, encode_report
from stratalog.model.segment import RemoteState
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from stratalog_cli.pipeline.run import numbers_of
from support.archived_tables import add_segment, batch_of, json_value
from support.cold_data import ColdShard
from support.cold_reading import put_shard

PROGRAM = str(Path(sys.executable).with_name("stratalog"))


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(("pipeline",)), ["pipeline", *arguments])


def report_of(path: Path) -> JobReport:
    return decode_report(path.read_text())


def bucket_with_a_tail(folder: Path) -> str:
    """Topic `cold`: a sealed segment of four records, and three committed ones behind it that are not sealed."""

    async def put() -> None:
        store = open_store(str(folder))
        cold = ColdShard(store)
        await add_segment(cold, [[json_value(number) for number in range(4)]])
        await cold.add(
            [[batch_of(4, [json_value(number) for number in (4, 5, 6)], epoch=1)]], state=RemoteState.PARTIAL
        )
        await put_shard(cold)
        await store.close()

    asyncio.run(put())
    return str(folder)


@pytest.mark.fault("scheduled-job-stopped")
def test_each_topic_is_archived_and_the_report_has_the_sums_and_the_lag_also_when_one_fails(tmp_path: Path) -> None:
    bucket, report = bucket_with_a_tail(tmp_path / "bucket"), tmp_path / "reports" / "nightly.json"
    report.parent.mkdir()
    # Where the report cannot be replaced as a whole, such as a pod's termination message, it is written in place.
    (report.parent / ".nightly.json.new").mkdir()
    job = ("archive", "--bucket", bucket, "--to", str(tmp_path / "table"), "--threads", "0")

    ran = invoke("run", "--report", str(report), "--topics", "cold,absent", "--", *job)
    made = report_of(report)
    assert ran.exit_code == made.exit_code == 2 and "absent" in made.message
    assert (made.action, made.segments, made.rows, made.lag_records) == ("archive", 1, 4, 3)
    assert made.is_committed and made.bytes > 0 and made.started_ms <= made.finished_ms

    assert invoke("run", "--report", str(report), "--", "archive", "cold", *job[1:]).exit_code == 0
    again = report_of(report)
    assert (again.exit_code, again.rows, again.lag_records, again.is_committed) == (0, 0, 3, False)
    assert not again.message

    shown = invoke("results", str(report.parent))
    assert shown.exit_code == 0 and "nightly" in shown.output and "done" in shown.output
    (listed,) = json.loads(invoke("results", str(report), "--output", "json").stdout)
    assert (listed["job"], listed["lag_records"]) == ("nightly", 3)


@pytest.mark.fault("scheduled-job-stopped")
def test_a_run_beside_another_does_nothing_and_leaves_the_report_of_the_other(tmp_path: Path) -> None:
    lock, report = tmp_path / "lock", tmp_path / "report.json"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = invoke("run", "--lock", str(lock), "--report", str(report), "--", "verify", "--bucket", str(tmp_path))
    assert ran.exit_code == 3 and "another run holds" in ran.output
    assert not report.exists()


@pytest.mark.fault("scheduled-job-stopped")
def test_a_run_that_is_stopped_ends_its_job_and_says_so(tmp_path: Path) -> None:
    """As systemd and Kubernetes stop one that hangs: its store takes the connection and never answers."""
    report = tmp_path / "report.json"
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def hear() -> None:
            connection, _ = silent.accept()
            connection.recv(1)
            asked.set()

        threading.Thread(target=hear, daemon=True).start()
        store = f"s3://bucket/x?endpoint=http://127.0.0.1:{silent.getsockname()[1]}&skip_signature=true"
        words = [PROGRAM, "pipeline", "run", "--report", str(report), "--", "verify", "--threads", "0"]
        run = subprocess.Popen([*words, "--bucket", store], stderr=subprocess.PIPE)
        try:
            assert asked.wait(60)
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 128 + signal.SIGTERM
        finally:
            run.kill()
            run.communicate()
    made = report_of(report)
    assert made.exit_code == 128 + signal.SIGTERM and "signal 15" in made.message and not made.is_committed


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "--", "cost", "--bucket", "x"], "is not"),
        (["run", "--", "run", "--", "verify"], "is not"),
        (["run", "--topics", "a", "--", "verify"], "for archive and sink"),
        (["results", "absent.json"], "cannot be read"),
        (["results", "."], "no job has left a report"),
    ],
)
def test_what_cannot_be_scheduled_or_shown_is_refused(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = invoke(*words)
    assert ran.exit_code == 2 and reason in ran.output


def test_a_failed_result_is_shown_with_its_reason_and_an_exit_code(tmp_path: Path) -> None:
    failed = JobReport("compact", 3, 1000, 2000, message="the store \x1b[31mdoes not answer")
    (tmp_path / "weekly.json").write_text(encode_report(failed))
    shown = invoke("results", str(tmp_path))
    assert shown.exit_code == 1
    assert "exit code 3" in shown.output and "does not answer" in shown.output and "\x1b" not in shown.output


def test_numbers_come_from_the_results_that_the_jobs_print() -> None:
    """Of each job that is not run above: a field that is renamed there is missed here."""
    from dataclasses import asdict

    from stratalog_pipeline.jobs.export.export import Exported
    from stratalog_pipeline.jobs.repair.compact import Compacted, NotCompacted
    from stratalog_pipeline.jobs.repair.verify import Verified
    from stratalog_pipeline.jobs.sinks.sink import Sunk

    compacted = Compacted(merged=2, bytes_put=9, not_merged=[NotCompacted("s", "why")])
    assert numbers_of("compact", asdict(compacted)) == {"segments": 2, "bytes": 9, "findings": 1, "changes": 2}
    assert numbers_of("verify", asdict(Verified(segments=3, bytes=7)))["changes"] == 0
    sunk = numbers_of("sink", asdict(Sunk("cold", "postgres", records=8, bytes_read=6, unread=["x"])))
    assert sunk == {"rows": 8, "bytes": 6, "findings": 1, "changes": 8}
    exported = numbers_of("export", asdict(Exported(pieces=5, pieces_there=2, records=8, bytes_put=6, unread=["x"])))
    assert exported == {"segments": 3, "rows": 8, "bytes": 6, "findings": 1, "changes": 8}
