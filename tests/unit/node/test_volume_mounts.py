"""A retired node's directory is read where it lies, by a process that writes nothing there, for all the other nodes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import (
    FINAL_EPOCH,
    NO_SESSION,
    ReplicaFetch,
    SegmentAsk,
    decode_replica_answer,
    encode_replica_fetch,
)
from stratalog.model.commands.mount_commands import BeginMount, CloseVolume, DoubtMount, EndMount, OpenVolume, TakeMount
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, NotFound, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.settings.process import ProcessSettings
from stratalog_node.mounts.probe import DataSetProbe
from stratalog_node.shards.catalog.lag import CatalogLag
from stratalog_node.shards.copies.peer_reads import PeerBusy
from stratalog_node.tier.sweep.expired_writers import ExpiredWriters
from stratalog_node.volume import volume_node
from stratalog_node.volume.volume_node import VolumeNode
from support.leaving_nodes import QUICK, Leaving
from support.node_cluster import NodeCluster
from support.shard_rig import START_MS
from support.waiting import eventually
from unit.node.test_mounted_data_sets import gone, is_served, mount_of

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_watched: dict[str, list[str]] = {}
"""Directories in which nothing may be changed, and what was."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    is_write = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
    if is_write or event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime"):
        for root, found in _watched.items():
            found += [f"{event} {one}" for one in map(str, arguments[:2]) if one.startswith(root)]


sys.addaudithook(_audit)


def tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Everything in it: size, time of the last change, and what it holds."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in sorted(root.rglob("*"))
    }


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    before = tree(root)
    changes = _watched[str(root)] = []
    try:
        yield
    finally:
        del _watched[str(root)]
    assert changes == []
    assert tree(root) == before


@asynccontextmanager
async def volume(cluster: NodeCluster, node_id: int, expected: int | None = None) -> AsyncIterator[VolumeNode]:
    meta: Any = cluster.meta
    node = VolumeNode(ProcessSettings(), cluster.root / str(node_id), "127.0.0.1", 0, meta, node_id=expected)
    await node.start()
    try:
        yield node
    finally:
        await node.close()


async def with_sealed_data(cluster: NodeCluster) -> tuple[ShardKey, int, list[bytes | None]]:
    """A segment that one node alone holds; the log continues on another node once that node is gone."""
    await cluster.start(1, 2, 3)
    key = await cluster.shard(1)
    left = cluster.leader(key)
    for number in range(20):
        await cluster.append(key, b"%d" % number * 500)
    values = await cluster.values(key)
    assert cluster.nodes[left].ask_roll(key)
    await cluster.is_sealed(key)
    return key, left, values


@pytest.mark.fault("process-serves-retired-directory")
async def test_the_other_nodes_read_a_retired_directory_and_nothing_in_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.05)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        key, left, values = await with_sealed_data(cluster)
        mount = await gone(cluster, left, MountMode.VOLUME)
        assert mount.state is MountState.TAKING
        reader = next(iter(cluster.nodes.values()))
        with untouched(tmp_path / str(left)):
            async with volume(cluster, left) as served:
                await is_served(cluster, left)
                shard = reader.shards.get(key)
                assert shard is not None
                await eventually(lambda: reader.catalog.reads_at(left) == served.address)
                found = b"".join([bytes(piece) for piece in await shard.read(0, 1 << 20)])
                for value in values:
                    assert value is not None and value in found
                assert served.files.stats.reads >= 1 and served.files.stats.read_bytes >= len(found)
                first = cluster.segments(key)[0]
                assert await reader.peer_reads.find_by_time(first, [left], START_MS, 5) == (5, START_MS)
                assert served.files.stats.connections >= 1
            await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.volume is None)
            now = mount_of(cluster, left)
            assert now is not None and now.state is MountState.TAKING, "it said that it stops"
            with pytest.raises(Unavailable):
                await shard.read(0, 1 << 20)


@pytest.mark.fault("retired-directory-detached-late")
async def test_a_reader_of_another_or_an_unretired_directory_is_refused_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        with pytest.raises(Unavailable, match="in use by a node that writes there"):
            async with volume(cluster, 2):
                pass
        await cluster.stop(2)
        with untouched(tmp_path / "2"), pytest.raises(NotFound, match="only what was retired in volume mode"):
            async with volume(cluster, 2):
                pass
        with pytest.raises(NotFound, match=r"node\.json is not there"):
            async with volume(cluster, 7):
                pass
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "node.json").write_text('{"node_id": 7, "storage_id": "s", "cluster_id": "another"}')
        with pytest.raises(InvalidRequest, match="belongs to cluster another"):
            async with volume(cluster, 7):
                pass
        with pytest.raises(InvalidRequest, match="is the directory of node 2, not of node 1"):
            async with volume(cluster, 2, expected=1):
                pass
        await cluster.lose(2)
        service = cluster.meta.service
        storage = next(node.storage_id for node in (await service.snapshot()).nodes if node.node_id == 2)
        mount = await service.perform(BeginMount(2, storage, MountMode.VOLUME))
        with pytest.raises(Conflict, match="this directory is storage other"):
            await service.perform(OpenVolume(2, "other", "127.0.0.1", 1, "start"))
        async with volume(cluster, 2) as first, volume(cluster, 2) as second:
            await eventually(first.is_over.is_set)
            assert "another process reads this directory now" in first.why_over
            await service.perform(CloseVolume(2, "neither of them"))
            assert (await service.snapshot()).mounts[0].volume is not None
            await service.perform(EndMount(mount.name))
            await eventually(second.is_over.is_set)
            assert "has ended" in second.why_over


async def test_what_was_said_of_the_mount_before_a_process_opened_it_does_not_end_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        await gone(cluster, 2, MountMode.VOLUME)
        service = cluster.meta.service
        storage = next(node.storage_id for node in (await service.snapshot()).nodes if node.node_id == 2)
        cluster.meta.hold(OpenVolume)
        opening = asyncio.create_task(volume(cluster, 2).__aenter__())
        await eventually(lambda: cluster.meta.calls[OpenVolume] == 1)  # it has read the metadata
        await service.perform(EndMount("tier/2"))
        await service.perform(BeginMount(2, storage, MountMode.VOLUME))
        await service.perform(OpenVolume(2, storage, "127.0.0.1", 1, "an earlier one"))
        cluster.meta.release(OpenVolume)
        node = await opening
        try:
            await service.perform(OpenVolume(2, storage, "127.0.0.1", 2, "a later one"))
            await eventually(node.is_over.is_set)
            assert node.why_over == "another process reads this directory now, at 127.0.0.1:2"
        finally:
            await node.close()


async def test_a_mount_that_began_again_before_its_process_had_caught_up_ends_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept running, but no node asked it: the mount named no process."""
    may_catch_up = asyncio.Event()

    class Late(CatalogLag):
        async def catch_up(self) -> bool:
            await may_catch_up.wait()
            return await super().catch_up()

    monkeypatch.setattr(volume_node, "CatalogLag", Late)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        await gone(cluster, 2, MountMode.VOLUME)
        service = cluster.meta.service
        storage = next(node.storage_id for node in (await service.snapshot()).nodes if node.node_id == 2)
        async with volume(cluster, 2) as node:
            await service.perform(EndMount("tier/2"))
            await service.perform(BeginMount(2, storage, MountMode.VOLUME))
            may_catch_up.set()
            await eventually(node.is_over.is_set)
            assert node.why_over == "mount tier/2 has ended: this directory is not read any more"


@pytest.mark.fault("process-serves-retired-directory-killed")
async def test_a_directory_that_does_not_answer_any_more_is_doubted_aloud_and_one_that_does_again_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.02)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        _, left, _ = await with_sealed_data(cluster)
        await gone(cluster, left, MountMode.VOLUME)
        async with volume(cluster, left):
            await is_served(cluster, left)
            cluster.meta.hold(CloseVolume)  # it is killed, so its goodbye does not arrive
        await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.state is MountState.TAKING)
        cluster.meta.open_all()
        async with volume(cluster, left):
            await is_served(cluster, left)


async def test_a_holder_that_never_reached_the_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then may a person give the directory up."""
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.02)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        _, left, _ = await with_sealed_data(cluster)
        await gone(cluster, left, MountMode.VOLUME)
        mount = mount_of(cluster, left)
        assert mount is not None and not mount.is_doubted
        await cluster.meta.service.perform(OpenVolume(left, mount.storage_id, "127.0.0.1", 1, "killed since"))
        await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.is_doubted)


@pytest.mark.parametrize("what", ["checks its files", "takes no word"])
async def test_a_process_that_answers_is_not_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A person could give up what it reads."""
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.02)
    looks = 0

    async def probe(_: DataSetProbe, mount: Mount) -> None:
        nonlocal looks
        looks += 1
        if mount.volume is None:
            raise Unavailable("not yet")
        if what == "checks its files":
            raise PeerBusy("it compares the digest of a large file")

    monkeypatch.setattr(DataSetProbe, "__call__", probe)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        _, left, _ = await with_sealed_data(cluster)
        if what == "takes no word":
            cluster.meta.fail(TakeMount, *[Unavailable("the service is busy")] * 6)
        await gone(cluster, left, MountMode.VOLUME)
        await eventually(lambda: looks > 3)
        async with volume(cluster, left):
            looks = 0
            await eventually(lambda: looks > 6)
            assert not cluster.meta.calls[DoubtMount]


async def test_the_sweeper_of_a_departed_node_reports_nothing_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks whether its token is valid. A person could give up an unchecked directory."""
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 60)
    looks = 0

    async def probe(_: DataSetProbe, mount: Mount) -> None:
        nonlocal looks
        looks += 1
        raise PeerBusy("it compares the digest of a large file")

    monkeypatch.setattr(DataSetProbe, "__call__", probe)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        _, left, _ = await with_sealed_data(cluster)
        mount = await gone(cluster, left, MountMode.VOLUME)
        async with volume(cluster, left):
            assert mount.holder is not None
            holder = cluster.nodes[mount.holder]
            await eventually(lambda: (now := holder.catalog.mount_of(left)) is not None and now.volume is not None)
            sweeper = ExpiredWriters(mount.holder, cast(Any, holder.meta), holder.catalog, 10_000)
            assert await sweeper.last_epoch(left) == mount.token - 1
            snapshot = await cluster.meta.service.snapshot()
            assert [(one.state, one.is_doubted) for one in snapshot.mounts] == [(MountState.TAKING, False)]


async def test_a_process_is_not_doubted_for_what_the_one_before_it_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.02)
    asked: list[str] = []
    may_answer = asyncio.Event()

    async def probe(_: DataSetProbe, mount: Mount) -> None:
        if mount.volume is not None:
            asked.append(mount.volume.start_id)
        if asked.count("second") == 2:
            await may_answer.wait()
        raise Unavailable("no answer")

    monkeypatch.setattr(DataSetProbe, "__call__", probe)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        _, left, _ = await with_sealed_data(cluster)
        mount = await gone(cluster, left, MountMode.VOLUME)
        for start_id in ("first", "second"):
            await cluster.meta.service.perform(OpenVolume(left, mount.storage_id, "127.0.0.1", 1, start_id))
            await eventually(lambda: asked.count(start_id) >= 2)  # noqa: B023
            if start_id == "first":
                await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.is_doubted)
        assert (now := mount_of(cluster, left)) is not None and not now.is_doubted
        may_answer.set()
        await eventually(lambda: (now := mount_of(cluster, left)) is not None and now.is_doubted)


@pytest.mark.fault("client-unknown-program-sends")
async def test_a_client_and_a_stranger_are_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        key, left, _ = await with_sealed_data(cluster)
        await gone(cluster, left, MountMode.VOLUME)
        async with volume(cluster, left) as served:
            ask = SegmentAsk(key.topic_id, 0, 0, 0, 100)
            for asked, answered in (
                (encode_replica_fetch(1, "s", ReplicaFetch(1, 77, 0, 1, NO_SESSION, FINAL_EPOCH, [ask])), True),
                (encode_replica_fetch(1, "f", ReplicaFetch(1, 77, 0, 1, 5, 1, [ask])), False),
                (b"\0\0\0\x0e\0\x12\0\x03\0\0\0\1\0\0\0\1\1\0", False),
                (b"\x7f\0\0\0", False),
            ):
                reader, writer = await asyncio.open_connection(*served.address)
                writer.write(asked)
                frame = await reader.read(1 << 16)
                assert bool(frame) is answered
                if answered:
                    told = decode_replica_answer(memoryview(frame)[4:])[1]
                    assert (told.error_code, told.segments) == (ErrorCode.BROKER_ID_NOT_REGISTERED, [])
                writer.close()
            await eventually(lambda: served.files.stats.connections <= 1)


@pytest.mark.fault("leader-restarts-shard-continues")
async def test_a_leader_that_begins_again_has_the_producers_of_a_retired_directory_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them each shard that went on behind such a segment would wait for as long as it is listed."""
    monkeypatch.setattr("stratalog_node.mounts.holding._LONGEST_PAUSE_MS", 100)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, **QUICK)
        leaving = Leaving(cluster, has_store=False)
        key = await cluster.shard(1)
        for number in range(3):
            await cluster.append(key, b"%d" % number, producer_id=5, base_sequence=number)
        left = cluster.leader(key)
        await leaving.retire(left, RetireMode.VOLUME)
        await leaving.until(step=RetireStep.MOUNT, of=left)
        await leaving.until(lambda: left not in cluster.nodes)
        stays = cluster.leader(key)
        await cluster.kill(stays)
        await cluster.lose(stays)
        await cluster.start(stays, **QUICK)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await cluster.append(key, b"2", producer_id=5, base_sequence=2)
                raise AssertionError("its producers were forgotten: it was taken again")
        async with volume(cluster, left) as served:
            await is_served(cluster, left)
            assert await cluster.append(key, b"2", producer_id=5, base_sequence=2) == 2, "a repetition is none"
            first = cluster.segments(key)[0]
            assert first.seal is not None and first.seal.producers.count == 1
            ask = SegmentAsk(key.topic_id, 0, 0, 0, 10, table_position=0)
            begin = await served.files.answer(ask)
            rest = await served.files.answer(ask._replace(table_position=10, max_bytes=1 << 20))
            assert begin.records_bytes == 10 and begin.records_bytes + rest.records_bytes == begin.high_watermark


@pytest.mark.fault("file-retired-directory-damaged")
async def test_what_is_damaged_or_missing_in_the_directory_is_refused_and_never_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        key, left, _ = await with_sealed_data(cluster)
        await gone(cluster, left, MountMode.VOLUME)
        first = cluster.segments(key)[0]
        path = cluster.layout(left).segment(first.key)
        data = bytearray(path.read_bytes())
        async with volume(cluster, left) as served:
            ask = SegmentAsk(key.topic_id, 0, 0, 3, 1_000)
            assert (await served.files.answer(ask)).records_bytes
            damaged = bytearray(data)
            damaged[-10] ^= 1
            path.write_bytes(damaged)
            last = ask._replace(fetch_offset=19)
            codes = [(await served.files.answer(last)).error_code]
            path.unlink()
            for one in (ask, ask._replace(fetch_offset=20), ask._replace(epoch=9)):
                codes.append((await served.files.answer(one)).error_code)
            assert codes == [
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.KAFKA_STORAGE_ERROR,
                ErrorCode.OFFSET_OUT_OF_RANGE,
                ErrorCode.UNKNOWN_LEADER_EPOCH,
            ]
            assert served.files.stats.refusals >= 4


async def test_a_node_is_retired_with_its_volume_and_consumers_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.mounts.holding._LONGEST_PAUSE_MS", 100)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2, 3, **QUICK)
        leaving = Leaving(cluster, has_store=False)
        key = await cluster.shard(1)
        values = [b"value-%d" % number for number in range(10)]
        for value in values:
            await cluster.append(key, value)
        gone_id = cluster.leader(key)
        await leaving.retire(gone_id, RetireMode.VOLUME)
        await leaving.until(step=RetireStep.MOUNT, of=gone_id)
        await leaving.until(lambda: gone_id not in cluster.nodes)
        await cluster.append(key, b"after")
        with untouched(tmp_path / str(gone_id)):
            async with volume(cluster, gone_id):
                await leaving.until(step=RetireStep.DONE, of=gone_id)
                assert await cluster.values(key) == [*values, b"after"]
                holder = (await is_served(cluster, gone_id)).holder
                assert holder is not None
                others = sum(node.following.stats.fetched_bytes for node in cluster.nodes.values())
                await cluster.kill(holder)
                await cluster.lose(holder)
                await eventually(lambda: (now := mount_of(cluster, gone_id)) is not None and now.holder != holder)
                await is_served(cluster, gone_id)
                assert others == 0, "no byte moved between nodes"
        with pytest.raises(Fenced, match=f"node {gone_id} was retired"):
            await cluster.start(gone_id)


@pytest.mark.fault("leader-restarts-shard-continues")
async def test_a_table_of_producers_is_made_again_where_its_index_block_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        await cluster.start(1, 2)
        key = await cluster.shard(1)
        left = cluster.leader(key)
        for number in range(3):
            await cluster.append(key, b"%d" % number, producer_id=5, base_sequence=number)
        assert cluster.nodes[left].ask_roll(key)
        segment = await cluster.is_sealed(key)
        await gone(cluster, left, MountMode.VOLUME)
        index, file = cluster.layout(left).index(segment.key), cluster.layout(left).segment(segment.key)
        ask = SegmentAsk(key.topic_id, 0, 0, 0, 1 << 20, table_position=0)
        async with volume(cluster, left) as served:
            (whole,) = (await served.files.answer(ask)).records
            parts = [await served.files.answer(ask._replace(max_bytes=7, table_position=at)) for at in (0, 7)]
            assert [part.records[0] for part in parts] == [whole[:7], whole[7:14]]
            assert {part.high_watermark for part in parts} == {len(whole)}
        index.write_bytes(index.read_bytes()[:-1])
        with untouched(tmp_path / str(left)):
            async with volume(cluster, left) as served:
                assert (await served.files.answer(ask)).records[0] == whole
        file.write_bytes(file.read_bytes()[:-1])
        async with volume(cluster, left) as served:
            assert (await served.files.answer(ask)).error_code == ErrorCode.REPLICA_NOT_AVAILABLE
