"""A topic in a bucket, a sink of it into a target, and targets that die or lose an answer at a chosen step."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.objects import open_store
from stratalog_pipeline.jobs.runners import Runner, one_by_one
from stratalog_pipeline.jobs.sinks import sink as sinks
from stratalog_pipeline.jobs.sinks.http_server import HttpServer
from stratalog_pipeline.jobs.sinks.sink import SinkOptions, Sunk
from stratalog_pipeline.jobs.sinks.target import TargetAddress
from support.cold_data import FIRST_TIME_MS, ColdShard
from support.cold_reading import put_shard

ONE_PART = 1
"""A piece of at most that many bytes has one part."""


def record_at(offset: int) -> Record:
    """Each kind of key, value and headers."""
    key = None if offset % 5 == 0 else b"key-%d" % offset
    value = None if offset % 7 == 3 else (b"\xff\0" if offset % 3 == 0 else b"") + b"value %d" % offset
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if offset % 4 == 1:
        headers = (("trace", b"%d" % offset), ("raw", b"\x80"), ("trace", None), ("nul", b"a\0b"))
    return Record(offset, FIRST_TIME_MS + offset, key, value, headers)


class SinkPlace:
    """A bucket in a folder, with shard 3 of a topic called `cold`."""

    def __init__(self, folder: Path, address: TargetAddress) -> None:
        self.bucket = str(folder / "bucket")
        self.address = address
        self.cold = ColdShard(open_store(self.bucket))

    async def fill(self, *parts: int, batch: Callable[[int, int, int], bytes] | None = None) -> None:
        """A sealed segment; each part is one batch of that many records (`batch`: of base offset, count, epoch)."""
        make = batch or batch_of
        made, base, epoch = [], self.cold.end_offset, len(self.cold.segments)
        for count in parts:
            made.append([make(base, count, epoch)])
            base += count
        self.cold.store = open_store(self.bucket)
        await self.cold.add(made)
        await put_shard(self.cold)
        await self.cold.store.close()

    async def expire(self, how_many: int) -> None:
        self.cold.store = open_store(self.bucket)
        await self.cold.expire(how_many)
        await put_shard(self.cold, log_start_offset=self.cold.segments[how_many].base_offset)
        await self.cold.store.close()

    def options(self, **options: Any) -> SinkOptions:
        return SinkOptions(self.bucket, self.address, "cold", **{"piece_bytes": ONE_PART, **options})

    def sink(self, run: Runner = one_by_one, **options: Any) -> Sunk:
        return sinks.sink(self.options(**options), run)


def batch_of(base: int, count: int, epoch: int) -> bytes:
    return encode_batch([record_at(base + number) for number in range(count)], base_offset=base, epoch=epoch)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(step: int, options: SinkOptions, with_steps: Callable[[Callable[[], None]], None]) -> bool:
    """Runs the sink in a process that ends by SIGKILL at its step of this number; False: it came to its end before.
    `with_steps`: makes what the sink uses call its argument at each step."""
    pid = os.fork()
    if not pid:
        try:
            steps = iter(range(1, 1 << 30))
            with_steps(lambda: die() if next(steps) == step else None)
            sinks.sink(options, one_by_one)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def with_requests_as_steps(step: Callable[[], None]) -> None:
    """Before each request to a target over HTTP and behind it; for a process of its own."""
    real = HttpServer.request

    def request(self: HttpServer, *arguments: Any) -> tuple[int, bytes]:
        step()
        answer = real(self, *arguments)
        step()
        return answer

    HttpServer.request = request  # type: ignore[method-assign, assignment]


def offsets_of(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    return [row[0] for row in rows]
