"""`remote.compression=zstd` as clients and commands meet it: a node that is killed while it uploads keeps every record,
the bucket has packed chunks, and all that reads or checks a bucket finds it whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from typer.testing import CliRunner

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest, Tier
from stratalog_cli.entry import build_app
from support.cluster_ports import free_port
from support.node_process import NodeProcess
from support.topics import create_topic, produce, read, values_of
from support.waiting import eventually_sync

CHUNK_BYTES = 128 << 10
SETTINGS = {
    "remote.upload.interval.ms": 50,
    "remote.upload.chunk.bytes": CHUNK_BYTES,
    "log.retention.check.interval.ms": 100,
    "remote.compression": "zstd",
}
VALUES_OF_A_LIFE = 500
LIVES = 2


def values_from(first: int) -> list[bytes]:
    """Different rows of the same shape."""
    rows = range(first, first + VALUES_OF_A_LIFE)
    return [json.dumps({"flight": n, "origin": "LHR", "text": f"row {n} " * 60}).encode() for n in rows]


@pytest.mark.fault("upload-packed-killed")
def test_a_node_that_is_killed_while_it_packs_loses_nothing_and_its_bucket_is_whole(
    start_node: Callable[..., NodeProcess], topic: str, tmp_path: Path
) -> None:
    bucket, meta = str(tmp_path / "packed"), f"127.0.0.1:{free_port()}"
    node = start_node(bucket, SETTINGS | {"meta.listen": meta})
    create_topic(node.bootstrap, topic, settings={"local.retention.ms": 1})
    create_topic(node.bootstrap, f"{topic}-plain", settings={"remote.compression": "none"})
    values: list[bytes] = []
    for _ in range(LIVES):
        fresh = values_from(len(values))
        produce(node.bootstrap, topic, fresh)
        values += fresh
        node.kill()  # what was produced is on its way to the bucket
        node.start()
    plain = values_from(0)
    produce(node.bootstrap, f"{topic}-plain", plain)
    admin = AdminClient(node.admin)
    for name in (topic, f"{topic}-plain"):
        admin.seal(SealRequest(topic=name))

    def is_cold() -> bool:
        segments = [segment for segment in admin.segments(topic) if segment.end_offset > segment.base_offset]
        return bool(segments) and all(segment.tier is Tier.COLD for segment in segments)

    eventually_sync(is_cold, 30)
    assert values_of(read(node.bootstrap, topic, len(values))) == values
    location = admin.locate(topic, 0, 3)
    assert "remote.compression=zstd: chunks are uploaded compressed" in location.why
    described = {one.name: one.topic_id for one in admin.topics()}
    of_topic = Path(bucket).rglob(f"data/{described[topic]}/**/*.packed")
    packed_bytes = sum(path.stat().st_size for path in of_topic)
    assert 0 < packed_bytes < sum(map(len, values)) / 4
    assert not list(Path(bucket).rglob(f"data/{described[f'{topic}-plain']}/**/*.packed"))

    ran = CliRunner().invoke(build_app(("verify",)), ["verify", topic, "--admin", node.admin, "--output", "json"])
    assert ran.exit_code == 0, ran.output
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", bucket, "--output", "json"])
    found = [one for place in json.loads(ran.stdout) for one in place["findings"]]
    assert [one for one in found if one["severity"] != "hint"] == []
    places = ["--bucket", bucket, "--meta", f"http://{meta}", "--topics", topic]
    ran = CliRunner().invoke(build_app(("pipeline",)), ["pipeline", "verify", *places, "--threads", "0", "-o", "json"])
    told = json.loads(ran.stdout)
    told = json.loads(ran.stdout)
    assert told["findings"] == [] and told["batches"] > 0
