"""A file in a retired directory is checked when it is read first, and again when another one lies in its place."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.replica_fetch import SegmentAsk
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.mounts import MountMode, MountState
from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.copies.peer_reads import PeerBusy
from stratalog_node.volume import checked_files
from stratalog_node.volume.checked_files import CheckedFiles, Mark
from stratalog_node.volume.volume_node import VolumeNode
from support.meta_worlds import seal_record
from support.node_cluster import NodeCluster
from support.shard_rig import START_MS
from support.waiting import eventually
from unit.node.test_mounted_data_sets import gone, is_served, mount_of
from unit.node.test_uploads_of_mounts import with_other_content
from unit.node.test_volume_mounts import volume, with_sealed_data


@dataclass
class Directory:
    cluster: NodeCluster
    served: VolumeNode
    path: Path
    """Of the segment's file."""
    ask: SegmentAsk
    checks: list[Path]
    """Whose batches' headers were read, in order."""

    @property
    def files(self) -> Any:
        return self.served.files

    async def answers(self, ask: SegmentAsk | None = None) -> int:
        return (await self.files.answer(ask or self.ask)).error_code

    def put(self, data: bytes, *, as_copies_do: bool = False) -> None:
        """In the place of what is there: as another file, with the times of the first one if `as_copies_do`."""
        found, made = self.path.stat(), self.path.with_suffix(".new")
        made.write_bytes(data)
        if as_copies_do:
            os.utime(made, ns=(found.st_atime_ns, found.st_mtime_ns))
        made.replace(self.path)


@pytest.fixture(autouse=True)
def checks_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratalog_node.volume.sealed_files._CHECK_S", 30.0)


@asynccontextmanager
async def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Directory]:
    checks: list[Path] = []
    real = checked_files._check_digest

    def counted(copy: Any) -> None:
        checks.append(copy.file.path)
        real(copy)

    monkeypatch.setattr(checked_files, "_check_digest", counted)
    async with NodeCluster(tmp_path, monkeypatch) as cluster:
        key, left, _ = await with_sealed_data(cluster)
        await gone(cluster, left, MountMode.VOLUME)
        path = cluster.layout(left).segment(cluster.segments(key)[0].key)
        async with volume(cluster, left) as served:
            await is_served(cluster, left)
            yield Directory(cluster, served, path, SegmentAsk(key.topic_id, 0, 0, 3, 1_000), checks)


@pytest.mark.fault("file-retired-directory-sealed")
@pytest.mark.parametrize("how", ["another file", "another file of the same time", "in place"])
async def test_a_file_that_is_swapped_after_its_first_range_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with directory(tmp_path, monkeypatch) as one:
        good = one.path.read_bytes()
        assert await one.answers() == 0
        wrong = with_other_content(good, 3)
        if how == "in place":
            os.utime(one.path, ns=(1, 1))
            assert await one.answers() == 0, "touched, and checked again"
            one.path.write_bytes(wrong)
        else:
            one.put(wrong, as_copies_do=how != "another file")
        assert await one.answers() == ErrorCode.CORRUPT_MESSAGE, "its CRCs are right, and it was not sealed"
        assert await one.answers(one.ask._replace(timestamp_ms=START_MS)) == ErrorCode.CORRUPT_MESSAGE
        one.put(good)
        assert await one.answers() == 0


@pytest.mark.fault("reads-refused-files-retired")
async def test_a_refused_file_is_not_checked_again_for_a_minute_unless_another_one_is_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with directory(tmp_path, monkeypatch) as one:
        now_ms = 1_000
        one.files._files._steady_ms = lambda: now_ms
        good = one.path.read_bytes()
        one.put(with_other_content(good))
        one.checks.clear()
        for _ in range(5):
            assert await one.answers() == ErrorCode.CORRUPT_MESSAGE
        assert len(one.checks) == 1
        now_ms += 59_999
        assert (await one.answers(), len(one.checks)) == (ErrorCode.CORRUPT_MESSAGE, 1)
        now_ms += 1
        assert (await one.answers(), len(one.checks)) == (ErrorCode.CORRUPT_MESSAGE, 2)
        one.put(good)
        assert (await one.answers(), len(one.checks)) == (0, 3)
        assert (await one.answers(), len(one.checks)) == (0, 3)


async def test_a_file_that_is_swapped_at_each_read_is_an_error_and_never_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with directory(tmp_path, monkeypatch) as one:
        marks = iter(range(10**6))
        monkeypatch.setattr(checked_files, "mark_of", lambda _: Mark(1, next(marks) // 2, 1 << 30, 1, 1))
        one.put(one.path.read_bytes())
        assert await one.answers() == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.fault("reads-refused-files-retired")
async def test_a_read_of_an_unchecked_file_gets_an_error_and_the_directory_is_not_doubted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_node.volume.sealed_files._CHECK_S", 0.01)
    monkeypatch.setattr("stratalog_node.mounts.holding._VOLUME_POLL_S", 0.01)
    async with directory(tmp_path, monkeypatch) as one:
        left = one.served.identity.node_id
        reader = next(iter(one.cluster.nodes.values()))
        segment = next(s for key in reader.catalog.shard_keys() for s in reader.catalog.segments(key) if s.seal)
        counted, go_on = checked_files._check_digest, threading.Event()

        def held(copy: Any) -> None:
            assert go_on.wait(60)
            counted(copy)

        monkeypatch.setattr(checked_files, "_check_digest", held)
        try:
            one.put(one.path.read_bytes())
            assert await one.answers() == ErrorCode.REQUEST_TIMED_OUT
            with pytest.raises(PeerBusy, match="checks its file of segment"):
                await reader.peer_reads.probe(segment, left, 3)
            with pytest.raises(Unavailable):
                await reader.peer_reads.read(segment, [left], 3, 1)
            assert left in [*reader.peer_reads.holders(segment)[0], *reader.peer_reads.holders(segment)[1]]
            waits = one.files.stats.waits
            await eventually(lambda: one.files.stats.waits >= waits + 5)  # the holder looks again and again
            mount = mount_of(one.cluster, left)
            assert mount is not None and mount.state is MountState.SERVING
            assert (reader.peer_reads.stats.failures, reader.peer_reads.stats.refusals) == (0, 0)
        finally:
            go_on.set()

        async def is_answered() -> bool:
            return await one.answers() == 0

        await eventually(is_answered)


@pytest.mark.fault("reads-refused-files-retired")
async def test_two_files_are_checked_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, under_way, most, go_on = threading.Lock(), 0, 0, threading.Event()

    def check(*_: Any) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        assert go_on.wait(60)
        with lock:
            under_way -= 1

    monkeypatch.setattr(checked_files, "mark_of", lambda _: Mark(1, 1, 1, 1, 1))
    monkeypatch.setattr(checked_files, "_check_header", lambda *_: None)
    monkeypatch.setattr(checked_files, "_check_digest", check)
    threads = DiskThreads()
    files = CheckedFiles(NodeLayout(tmp_path), "cluster", threads, Descriptors(1), 1 << 20, lambda: 0)
    keys = [SegmentKey(UUID(int=7), 0, epoch, 0) for epoch in range(8)]
    waiting = [asyncio.create_task(files.check(key, seal_record(key, 10))) for key in keys]
    await eventually(lambda: under_way == 2)
    go_on.set()
    await asyncio.gather(*waiting)
    assert most == 2
    await files.close()
    threads.close()
