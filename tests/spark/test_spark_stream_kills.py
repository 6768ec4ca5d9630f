"""A driver that is killed after the sink has a batch, and before the checkpoint says so, repeats this very batch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from support.growing_bucket import GrowingBucket

pytestmark = needs_spark

DRIVER = """
import json, os, signal, sys
from pathlib import Path
from stratalog_pipeline.jobs.session import local_session

bucket, folder, kill_at, most_bytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
spark = local_session("killed", threads=1, memory="512m", folder=folder)

def take(frame, batch):
    told = json.dumps(sorted(row.offset for row in frame.select("offset").collect()))
    place = folder / "sink" / f"{batch}.json"
    if place.exists():  # a sink that knows what it already has
        (folder / "repeated").write_text(json.dumps([batch, place.read_text() == told]))
    else:
        place.write_text(told)
    if batch == kill_at:
        os.killpg(0, signal.SIGKILL)  # this process, and Spark's

frame = spark.readStream.format("stratalog").option("maxBytesPerTrigger", most_bytes).load(bucket)
writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
"""


def drive(bucket: GrowingBucket, folder: Path, kill_at: int, most_bytes: int) -> int:
    """How the driver ended."""
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-c", DRIVER, bucket.url, str(folder), str(kill_at), str(most_bytes)]
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        return driver.wait(240)


@pytest.mark.fault("stream-driver-killed-sink")
@pytest.mark.slow
def test_each_record_is_once_in_a_sink_that_goes_by_the_number_of_the_batch(tmp_path: Path) -> None:
    kill_at = 2
    bucket = GrowingBucket(str(tmp_path / "bucket"))
    bucket.grow(2)
    (tmp_path / "sink").mkdir()
    assert drive(bucket, tmp_path, kill_at, most_bytes=1) == -signal.SIGKILL, (tmp_path / "log").read_text()
    written = {int(place.stem) for place in (tmp_path / "sink").iterdir()}
    assert written == set(range(kill_at + 1))
    assert not (tmp_path / "checkpoint" / "commits" / str(kill_at)).exists(), "killed before the checkpoint had it"
    bucket.grow()  # a repeated batch takes none of it
    # The repeated batch is what it was, however much one may take now.
    assert drive(bucket, tmp_path, -1, most_bytes=1 << 30) == 0, (tmp_path / "log").read_text()
    assert json.loads((tmp_path / "repeated").read_text()) == [kill_at, True]
    places = sorted((tmp_path / "sink").iterdir(), key=lambda place: int(place.stem))
    assert [offset for place in places for offset in json.loads(place.read_text())] == list(range(90))
