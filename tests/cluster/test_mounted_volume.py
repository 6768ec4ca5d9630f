"""A node is gone and its directory stays: a process that may not write there serves it to all the others."""

from __future__ import annotations

import asyncio
import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.admin_api.client import AdminClient as NodeClient
from stratalog.admin_api.models import SealRequest
from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.mount_commands import BeginMount
from stratalog.model.commands.table_commands import BeginRecovery, SealUnclean
from stratalog.model.mounts import MountMode
from stratalog.model.segment import Segment
from support.meta_process import MetaProcess
from support.node_process import NodeFailed, NodeProcess
from support.read_only_process import ReadOnlyProcess
from support.topics import create_topic, produce, read_over_changes
from support.waiting import eventually, eventually_sync

VALUES = [b"flight-%d" % number for number in range(200)]
STRATALOG = str(Path(sys.executable).with_name("stratalog"))
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaProcess]:
    process = MetaProcess(tmp_path, "meta", "--data", str(tmp_path / "meta"), settings=("node.lease.ms=600",)).start()
    yield process
    process.kill()


@pytest.fixture
def nodes(tmp_path: Path, meta: MetaProcess) -> Iterator[dict[int, NodeProcess]]:
    started = {
        number: NodeProcess(
            tmp_path / f"node-{number}", verb=("node", "start"), arguments=("--meta", meta.url, "--id", str(number))
        ).start()
        for number in (1, 2)
    }
    yield started
    for one in started.values():
        one.kill()


def keep_to_permissions() -> None:
    """Root may write wherever it likes; this process, and what it runs, may not."""
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


@contextmanager
def not_writable(root: Path) -> Iterator[None]:
    """For whoever keeps to permissions; and nothing in it is another afterwards."""
    places = [root, *root.rglob("*")]
    modes = {path: path.stat().st_mode for path in places}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    refused = subprocess.run(["touch", str(root / "mine")], preexec_fn=keep_to_permissions, capture_output=True)
    assert refused.returncode != 0, "this is no proof: it may be written to"
    before = {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in places}
    try:
        yield
        assert {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in [root, *root.rglob("*")]} == before
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@contextmanager
def read_only_process(data: Path, meta_url: str, said: Path) -> Iterator[None]:
    process = ReadOnlyProcess(data, meta_url, said, keep_to_permissions)
    try:
        process.until_ready()
        yield
        process.stop()
    finally:
        process.end()


async def segments(client: HttpMetaClient) -> tuple[Segment, ...]:
    snapshot = await client.snapshot()
    topic = next(topic for topic in snapshot.topics if topic.name == "flights")
    return next(shard.segments for shard in snapshot.shards if shard.key.topic_id == topic.topic_id)


def ask(admin: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [STRATALOG, "mounts", *arguments, "--admin", admin], capture_output=True, text=True, timeout=60
    )


@pytest.mark.fault("process-serves-retired-directory")
async def test_a_directory_that_cannot_be_written_is_read_by_the_other_nodes(
    tmp_path: Path, meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    await asyncio.to_thread(create_topic, nodes[1].bootstrap, "flights")
    await asyncio.to_thread(produce, nodes[1].bootstrap, "flights", VALUES, patience_s=60)
    client = HttpMetaClient(meta.url)
    left = (await segments(client))[0].leader
    assert left is not None
    other = nodes[3 - left]
    await asyncio.to_thread(NodeClient(nodes[left].admin, timeout_s=60.0).seal, SealRequest(topic="flights", shard=0))
    nodes[left].stop()
    node = next(node for node in (await client.snapshot()).nodes if node.node_id == left)
    await eventually(lambda: is_over(client, left), timeout=20)  # or the log might continue where it was
    last = (await segments(client))[-1]
    await client.perform(BeginRecovery(last.key))
    await client.perform(SealUnclean(last.key))  # it is empty; the log continues on the other node
    mount = await client.perform(BeginMount(left, node.storage_id, MountMode.VOLUME))

    data = tmp_path / f"node-{left}"
    with not_writable(data / "node"), read_only_process(data, meta.url, tmp_path / "volume.log"):
        found = await asyncio.to_thread(read_over_changes, other.bootstrap, "flights", len(VALUES))
        assert found == VALUES

        def told() -> list[dict[str, object]]:
            return list(json.loads(ask(other.admin, "list", "--output", "json").stdout))

        await asyncio.to_thread(eventually_sync, lambda: told()[0]["state"] == "serving", 20)
        (shown,) = told()
        assert (shown["name"], shown["holder"], shown["only_there"]) == (mount.name, 3 - left, 1)
        assert re.match(r"127\.0\.0\.1:\d+", str(shown["volume"]))
        assert "volume" in ask(other.admin, "list").stdout
        assert "no other living node can hold it" in ask(other.admin, "move", mount.name).stderr
        assert "nothing else has 1 sealed segment of it" in ask(other.admin, "end", mount.name).stderr
        with pytest.raises(NodeFailed, match=r"in use by another process|was retired"):
            await asyncio.to_thread(nodes[left].start)
        arguments = ("--meta", meta.url, "--id", "3")
        nodes[3] = NodeProcess(tmp_path / "node-3", verb=("node", "start"), arguments=arguments)
        await asyncio.to_thread(nodes[3].start)
        moved = await asyncio.to_thread(ask, other.admin, "move", mount.name, "--to", "3")
        assert moved.returncode == 0, moved.stderr
        await asyncio.to_thread(eventually_sync, lambda: told()[0]["state"] == "serving", 20)
        (after,) = told()
        assert (after["holder"], after["only_there"]) == (3, 1) and after["token"] == int(str(shown["token"])) + 1
        found = await asyncio.to_thread(read_over_changes, other.bootstrap, "flights", len(VALUES))
        assert found == VALUES, "reads go on after a move"
    with pytest.raises(NodeFailed, match=f"node {left} was retired: its data set is mounted in volume mode"):
        await asyncio.to_thread(nodes[left].start)
    assert "no process serves the directory" in ask(other.admin, "list").stderr
    await client.close()


async def test_a_directory_whose_disk_is_gone_is_given_up_on_the_command_line(
    tmp_path: Path, meta: MetaProcess, nodes: dict[int, NodeProcess]
) -> None:
    await asyncio.to_thread(create_topic, nodes[1].bootstrap, "flights")
    await asyncio.to_thread(produce, nodes[1].bootstrap, "flights", VALUES, patience_s=60)
    client = HttpMetaClient(meta.url)
    left = (await segments(client))[0].leader
    assert left is not None
    admin, name = nodes[3 - left].admin, f"tier/{left}"
    await asyncio.to_thread(NodeClient(nodes[left].admin, timeout_s=60.0).seal, SealRequest(topic="flights", shard=0))
    nodes[left].kill()
    (tmp_path / f"node-{left}").rename(tmp_path / "broken-disk")
    storage_id = next(node.storage_id for node in (await client.snapshot()).nodes if node.node_id == left)
    await eventually(lambda: is_over(client, left), timeout=20)
    retire = ("retire", str(left), "--mode", "volume", "--force", storage_id)
    done = await asyncio.to_thread(ask_nodes, meta.url, *retire)
    assert done.returncode == 0, done.stderr
    await eventually(lambda: is_mounted(client, name), timeout=20)

    async def end(*force: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(ask, admin, "end", name, *force)

    told = (await end()).stderr
    assert "nothing else has 1 sealed segment of it" in told and f"--force {storage_id}` gives them up" in told
    assert "was spelled out" in (await end("--force", "another")).stderr
    ended = await end("--force", storage_id)
    assert ended.returncode == 0 and f"stratalog nodes status {left}" in ended.stdout, ended.stderr
    status = (await asyncio.to_thread(ask_nodes, meta.url, "status", str(left))).stdout
    assert f"shard 0 offsets [0, {len(VALUES)})" in status, "the sealed segment"
    assert f"shard 0 what may have been written from offset {len(VALUES)} on" in status, "the segment that was open"
    assert "2 ranges were given up" in " ".join(status.split())
    assert "no mounts" in (await asyncio.to_thread(ask, admin, "list")).stdout
    await client.close()


def ask_nodes(meta_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [STRATALOG, "nodes", *arguments, "--meta", meta_url], capture_output=True, text=True, timeout=60
    )


async def is_mounted(client: HttpMetaClient, name: str) -> bool:
    return any(mount.name == name for mount in (await client.snapshot()).mounts)


async def is_over(client: HttpMetaClient, node_id: int) -> bool:
    return not any(node.is_alive for node in (await client.snapshot()).nodes if node.node_id == node_id)
