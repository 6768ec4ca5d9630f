"""A node is retired with its volume, and its topic gets a remote tier only then: the others upload what lies there,
though the one that does is killed in the middle; then the mount ends, and the directory may go."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.metadata import Snapshot
from stratalog.model.mounts import Mount
from stratalog.model.segment import RemoteState, Segment
from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.read_only_process import ReadOnlyProcess
from support.topics import create_topic, produce, read_over_changes
from support.waiting import eventually

COUNT, SIZE = 2_000, 8_000
LEFT = 1
STRATALOG = str(Path(sys.executable).with_name("stratalog"))
SETTINGS = {
    "remote.upload.chunk.bytes": str(1 << 20),
    "retire.verify.interval.ms": "300",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    settings = ("node.lease.ms=1000", "retire.verify.interval.ms=300")
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=settings).start()
    yield process
    process.kill()


@pytest.fixture
def nodes(tmp_path: Path, meta: MetaProcess) -> Iterator[dict[int, NodeProcess]]:
    """Only the first one runs."""
    made = {}
    for number in (LEFT, 2, 3):
        arguments = ("--meta", meta.url, "--id", str(number), "--bucket", str(tmp_path / "bucket"))
        directory = tmp_path / f"node-{number}"
        made[number] = NodeProcess(directory, None, dict(SETTINGS), verb=("node", "start"), arguments=arguments)
    made[LEFT].start()
    yield made
    for one in made.values():
        one.kill()


def value(number: int) -> bytes:
    return b"flight-%08d " % number * (SIZE // 16)


def write(bootstrap: str) -> None:
    create_topic(bootstrap, "flights", settings={"remote.storage.enable": "false"})
    produce(bootstrap, "flights", map(value, range(COUNT)), patience_s=60)


def give_it_a_remote_tier(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("remote.storage.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "flights", incremental_configs=[entry])
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(30)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([STRATALOG, *arguments], capture_output=True, text=True, timeout=60)


def first_of(snapshot: Snapshot) -> Segment:
    topic = next(topic for topic in snapshot.topics if topic.name == "flights")
    return next(shard.segments[0] for shard in snapshot.shards if shard.key.topic_id == topic.topic_id)


@pytest.mark.fault("holder-dies-middle-upload")
async def test_a_volume_is_uploaded_by_its_holders_and_is_not_needed_any_more(
    tmp_path: Path, meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    await asyncio.to_thread(write, nodes[LEFT].bootstrap)
    await asyncio.gather(*(asyncio.to_thread(nodes[number].start) for number in (2, 3)))
    client = HttpMetaClient(meta.url)

    async def first() -> Segment:
        return first_of(await client.snapshot())

    async def mount() -> Mount:
        return next(one for one in (await client.snapshot()).mounts if one.name == f"tier/{LEFT}")

    async def is_retired() -> bool:
        return any(one.name == f"tier/{LEFT}" for one in (await client.snapshot()).mounts)

    alive = sum(node.is_alive for node in (await client.snapshot()).nodes)
    assert alive == 3
    asked = await asyncio.to_thread(run, "nodes", "retire", str(LEFT), "--mode", "volume", "--meta", meta.url)
    assert asked.returncode == 0, asked.stderr
    await eventually(is_retired, timeout=30)
    await eventually(lambda: not nodes[LEFT].is_running, timeout=20)
    before = await first()
    assert (before.remote.state, before.local_nodes) == (RemoteState.NONE, (LEFT,))

    process = ReadOnlyProcess(tmp_path / f"node-{LEFT}", meta.url, tmp_path / "volume.log")
    try:
        await asyncio.to_thread(process.until_ready)
        await asyncio.to_thread(give_it_a_remote_tier, nodes[2].bootstrap)

        async def is_begun() -> bool:
            return (await first()).remote.commit_offset > 0

        await eventually(is_begun, timeout=20)
        died = (await mount()).holder
        assert died in (2, 3)
        nodes[died].kill()

        async def is_whole() -> bool:
            return (await first()).remote.state is RemoteState.COMPLETE

        await eventually(is_whole, timeout=30)
        other = nodes[5 - died]
        ended = await asyncio.to_thread(run, "mounts", "end", f"tier/{LEFT}", "--admin", other.admin)
        assert ended.returncode == 0, ended.stderr
        await eventually(lambda: not process.is_running, timeout=20)
        assert f"mount tier/{LEFT} has ended" in process.said()
    finally:
        process.end()
    assert (await first()).local_nodes == ()
    await client.close()

    shutil.rmtree(tmp_path / f"node-{LEFT}")
    await asyncio.to_thread(nodes[died].start)
    bootstrap = ",".join(nodes[number].bootstrap for number in (2, 3))
    assert await asyncio.to_thread(read_over_changes, bootstrap, "flights", COUNT) == [
        value(number) for number in range(COUNT)
    ]
