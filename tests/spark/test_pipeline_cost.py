"""`stratalog pipeline cost` beside running nodes: both tiers of each topic, in table, JSON and plot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from click.testing import Result

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest
from stratalog.objects import open_store
from stratalog_cli.entry import build_app
from support.cold_data import ColdShard, batches_from
from support.node_process import NodeProcess
from support.topics import create_topic, produce
from support.waiting import eventually_sync

LOCAL_PRICE, COPIES = 1 << 30, 2
PRICES = {"currency": "EUR", "bucket_gib_month": 0.5, "local_gib_month": LOCAL_PRICE, "copies": COPIES}


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps(PRICES))
    return str(file)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """Topic `hot` is on its disk alone, of `cold` nothing is but an empty segment, `both` is in both tiers."""
    settings = {"remote.upload.interval.ms": 100, "log.retention.check.interval.ms": 200}
    with NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), settings=settings) as running:
        create_topic(running.bootstrap, "hot", settings={"remote.storage.enable": "false"})
        create_topic(running.bootstrap, "both")
        create_topic(running.bootstrap, "cold", settings={"local.retention.ms": 1})
        for topic in ("hot", "both", "cold"):
            produce(running.bootstrap, topic, [b"%0100d" % number for number in range(500)])
        admin = AdminClient(running.admin)
        for topic in ("both", "cold"):
            admin.seal(SealRequest(topic=topic))
        eventually_sync(lambda: local_bytes(running)["cold"] == 0 and in_bucket(running) == {"both", "cold"}, 60)
        yield running


def local_bytes(node: NodeProcess) -> dict[str, int]:
    return {one.name: one.bytes.local for one in AdminClient(node.admin).topics()}


def in_bucket(node: NodeProcess) -> set[str]:
    admin = AdminClient(node.admin)
    return {name for name in ("both", "cold") if any(s.remote_state == "complete" for s in admin.segments(name))}


def cost(*words: str) -> Result:
    return CliRunner().invoke(build_app(("pipeline",)), ["pipeline", "cost", *words], env={"COLUMNS": "160"})


def test_each_topic_has_a_row_for_each_tier_that_has_something_of_it(
    node: NodeProcess, prices: str, tmp_path: Path
) -> None:
    assert node.bucket is not None
    plot = tmp_path / "cost.svg"
    words = ("--bucket", node.bucket, "--prices", prices, "--admin", node.admin)
    ran = cost(*words, "--plot", str(plot), "--output", "json")
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    rows: dict[tuple[str, str], dict[str, Any]] = {(one["topic"], one["tier"]): one for one in told["rows"]}
    assert {place for place in rows if not place[0].startswith(("_", "("))} == {
        ("hot", "local"), ("both", "local"), ("both", "bucket"), ("cold", "bucket"),
    }  # fmt: skip
    on_disk = local_bytes(node)
    assert on_disk["hot"] > 50_000
    local = {topic: row for (topic, tier), row in rows.items() if tier == "local"}
    assert {topic: row["bytes"] for topic, row in local.items()} == {t: size for t, size in on_disk.items() if size}
    for row in local.values():
        assert row["storage_price"] == row["bytes"] * COPIES and row["request_price"] == 0
    assert told["nodes"] == [AdminClient(node.admin).status().node_id]
    texts = plot.read_text().replace("<", ">").split(">")
    labels = {text.rpartition(": ")[0] for text in texts}  # each bar's label ends with its sum
    assert {"local: hot", "local: both", "bucket: both", "bucket: cold"} <= labels

    table = cost(*words).stdout
    lines = [words for line in table.splitlines() if (words := line.split()[:3])[:1] in (["hot"], ["both"], ["cold"])]
    assert ["hot", "local", str(on_disk["hot"])] in lines and len(lines) == 4, table


def test_without_nodes_the_bucket_is_reported_and_what_is_missing(node: NodeProcess, prices: str) -> None:
    assert node.bucket is not None
    ran = cost("--bucket", node.bucket, "--prices", prices)
    assert ran.exit_code == 0
    assert "the nodes' disks are not counted" in ran.output and "local" not in ran.stdout.replace("--", "").split()


def test_nodes_of_another_cluster_are_refused_and_silent_ones_told(
    node: NodeProcess, prices: str, tmp_path: Path
) -> None:
    async def fill() -> None:
        store = open_store(str(tmp_path / "other"))
        await ColdShard(store).add([batches_from(0, 5)])
        await store.close()

    asyncio.run(fill())
    ran = cost("--bucket", str(tmp_path / "other"), "--admin", node.admin)
    assert ran.exit_code != 0 and "the bucket's is cold-test" in ran.output
    assert node.bucket is not None
    ran = cost("--bucket", node.bucket, "--admin", f"{node.admin},127.0.0.1:1")
    assert ran.exit_code == 1
    assert "left out" in ran.output and "local" in ran.stdout
