"""Jobs on a Spark cluster that their master's URL names: a real master and worker, with executors of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)
pytest.importorskip("pyspark", reason=NO_PIPELINE)

import pyspark

from stratalog.model.job_report import decode_report
from stratalog.objects import open_store
from support.archived_tables import add_segment, json_value
from support.cluster_ports import free_port
from support.cold_data import ColdShard
from support.s3_servers import stop_process
from support.waiting import eventually_sync

pytestmark = [*needs_spark, pytest.mark.slow]
HOME = Path(pyspark.__file__).parent
ENVIRONMENT = {
    **os.environ,
    "SPARK_HOME": str(HOME),
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
}


@contextmanager
def _daemon(folder: Path, name: str, ready: str, *options: str) -> Iterator[Path]:
    """Runs until the block ends; its log."""
    log = folder / f"{name}.log"
    words = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}.{name}", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=ENVIRONMENT, cwd=folder, stdout=output, stderr=output)
    try:
        eventually_sync(lambda: ready in log.read_text() or process.poll() is not None, 120)
        assert ready in log.read_text(), log.read_text()
        yield log
    finally:
        stop_process(process)


def _bucket(folder: Path) -> str:
    async def put() -> None:
        store = open_store(str(folder))
        cold = ColdShard(store)
        for start in (0, 10):
            await add_segment(cold, [[json_value(number) for number in range(start, start + 10)]])
        await store.close()

    asyncio.run(put())
    return str(folder)


def test_executors_of_a_cluster_archive_a_topic(tmp_path: Path) -> None:
    bucket, report = _bucket(tmp_path / "bucket"), tmp_path / "report.json"
    url = f"spark://127.0.0.1:{free_port()}"
    with ExitStack() as cluster:
        place = ("--host", "127.0.0.1", "--webui-port", "0")
        cluster.enter_context(_daemon(tmp_path, "Master", "New state: ALIVE", *place, "--port", url.rpartition(":")[2]))
        limits = ("--cores", "1", "--memory", "1200m", "-d", str(tmp_path / "work"))
        log = cluster.enter_context(_daemon(tmp_path, "Worker", "Successfully registered", *place, *limits, url))
        job = ("archive", "cold", "--bucket", bucket, "--to", str(tmp_path / "table"), "--master", url)
        words = [
            str(Path(sys.executable).with_name("stratalog")),
            "pipeline",
            "run",
            "--report",
            str(report),
            "--",
            *job,
        ]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        assert "Asked to launch executor" in log.read_text()
    left = decode_report(report.read_text())
    assert (left.segments, left.rows, left.lag_records) == (2, 20, 0)
