"""The node finds out by its own writes and flushes whether its disk makes progress."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.machines.leading.disk_health import DiskCall
from stratalog.model.errors import DiskFull, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog_node.buffers import BufferPool
from stratalog_node.disk.calls import DiskCalls, disk_call
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.shards.copies.stats import ShardStats
from stratalog_node.shards.copies.write_gate import WriteGate
from stratalog_node.shards.flush.disk_watch import DiskWatch
from stratalog_node.turn import Turn
from support.waiting import eventually

STALL_MS = 10_000
KEY = SegmentKey(UUID(int=7), 3, 2, 40)


@dataclass
class Watched:
    watch: DiskWatch
    gate: WriteGate
    threads: DiskThreads
    layout: NodeLayout
    now_ms: int = 1_000

    def clock_ms(self) -> int:
        return self.now_ms

    def pass_ms(self, lasting_ms: int) -> None:
        self.now_ms += lasting_ms
        self.watch.poll()


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    layout = NodeLayout(tmp_path)
    calls = DiskCalls()
    threads = DiskThreads(calls=calls)
    turn = Turn(BufferPool(), lambda: 0, lambda: 0)
    gate = WriteGate(turn, ShardStats())
    watch = DiskWatch(gate, threads, layout, STALL_MS)
    found = Watched(watch, gate, threads, layout)
    calls.clock_ms = found.clock_ms
    watch.start()
    yield found
    await watch.close()
    turn.close()
    threads.close()


async def test_a_flush_that_does_not_return_is_trouble_until_the_disk_has_worked_for_a_while(watched: Watched) -> None:
    is_over = threading.Event()

    def hang() -> None:
        with disk_call(DiskCall.FLUSH, Path("a.seg")):
            is_over.wait()

    flushing = asyncio.ensure_future(watched.threads.flush(hang))
    await eventually(lambda: watched.threads.calls.oldest(*DiskCall) is not None)
    watched.pass_ms(STALL_MS - 1)
    assert watched.watch.trouble is None and watched.watch.stats.oldest_call_ms == STALL_MS - 1
    watched.pass_ms(1)
    assert watched.watch.trouble is not None and "a flush of a.seg has not returned for 10 s" in watched.watch.trouble
    assert (watched.watch.stats.is_stuck, watched.watch.stats.stuck_times) == (1, 1)
    is_over.set()
    await flushing

    def works_again() -> bool:
        watched.pass_ms(1_000)
        return watched.watch.trouble is None

    began_ms = watched.now_ms
    await eventually(works_again)  # by its probes alone: nothing else is written
    assert watched.now_ms - began_ms >= 3 * STALL_MS and watched.layout.probe.exists()
    assert watched.watch.stats.is_stuck == 0


async def test_writes_that_fail_are_trouble_and_no_room_is_too(watched: Watched) -> None:
    watched.gate.no_room = "1 byte is free"
    watched.pass_ms(0)
    watched.pass_ms(STALL_MS)
    assert watched.watch.trouble is not None and "1 byte is free" in watched.watch.trouble


async def test_a_disk_that_refuses_probes_as_well_is_trouble(watched: Watched) -> None:
    watched.layout.probe.with_name("probe.tmp").mkdir()  # it cannot be written over

    def is_trouble() -> bool:
        watched.gate.write_failed("flights", 0, Unavailable("Input/output error"))
        watched.pass_ms(500)
        return watched.watch.trouble is not None

    await eventually(is_trouble)
    assert watched.watch.trouble is not None and "every write has failed" in watched.watch.trouble


@pytest.mark.fault("appends-file-fail-rest")
async def test_files_that_take_no_appends_are_named_while_others_do(watched: Watched) -> None:
    path, other = watched.layout.segment(KEY), watched.layout.segment(KEY._replace(shard=4))
    calls = watched.threads.calls
    calls.append_failed(path, Unavailable("Input/output error"))
    calls.append_failed(other, DiskFull("no space"))
    watched.pass_ms(STALL_MS - 1)
    calls.appended(other)
    calls.append_failed(path, Unavailable("Input/output error"))
    assert watched.watch.unwritable() == []
    watched.pass_ms(1)
    assert watched.watch.unwritable() == [KEY] and watched.watch.trouble is None
    calls.appended(path)
    assert watched.watch.unwritable() == []


async def test_calls_of_disk_threads_are_counted_and_those_of_others_are_not(watched: Watched) -> None:
    def fail() -> None:
        with disk_call(DiskCall.WRITE, Path("a.seg")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        await asyncio.to_thread(fail)
    watched.pass_ms(STALL_MS)
    watched.pass_ms(STALL_MS)
    assert watched.watch.trouble is None
    with pytest.raises(OSError, match="Input/output error"):
        await watched.threads.background(fail)
    assert watched.threads.calls.oldest(*DiskCall) is None


def test_a_read_in_the_middle_of_a_write_counts_beside_it() -> None:
    calls = DiskCalls(lambda: 5)
    with calls.call(DiskCall.WRITE, Path("copy")):
        with calls.call(DiskCall.READ, Path("original")):
            assert calls.oldest(DiskCall.READ) is not None
        assert calls.oldest(DiskCall.READ) is None and calls.oldest(DiskCall.WRITE) is not None
    assert calls.oldest(*DiskCall) is None
