"""Copies at rest are not visited: what is looked at is what something happened to, until the disk has it."""

from __future__ import annotations

import pytest

from stratalog_node.replication.background_flushes import BackgroundFlushes, flush_at_stop


class Copy:
    def __init__(self, name: str) -> None:
        self.name = name
        self.owes_flush = True
        self.flushed = 0
        self.fault: Exception | None = None

    async def flush_behind(self) -> None:
        self.flushed += 1
        if self.fault is not None:
            raise self.fault

    async def flush_at_stop(self) -> bool:
        self.flushed += 1
        return not self.owes_flush


@pytest.mark.fault("node-thousands-idle-shards")
async def test_a_copy_is_flushed_until_it_owes_nothing_and_then_left_alone() -> None:
    behind = BackgroundFlushes(1_000)
    copies = [Copy(str(number)) for number in range(200)]
    for copy in copies:
        behind.note(copy)
        behind.note(copy)
    await behind.flush()
    assert {copy.flushed for copy in copies} == {1}
    for copy in copies[1:]:
        copy.owes_flush = False
    await behind.flush()
    await behind.flush()
    assert [copy.flushed for copy in copies] == [3] + [1] * 199

    copies[5].owes_flush = True
    await behind.flush()
    assert copies[5].flushed == 1, "nothing happened to it that was told"
    behind.note(copies[5])
    await behind.flush()
    assert copies[5].flushed == 2


async def test_a_copy_that_is_let_go_of_is_not_flushed() -> None:
    behind, copy = BackgroundFlushes(1_000), Copy("gone")
    behind.note(copy)
    behind.forget(copy)
    await behind.flush()
    assert copy.flushed == 0


async def test_a_fault_of_one_copy_keeps_no_other_from_the_disk() -> None:
    behind, bad, good = BackgroundFlushes(1_000), Copy("bad"), Copy("good")
    bad.fault = ValueError("a bug")
    for copy in (bad, good):
        behind.note(copy)
    await behind.flush()
    await behind.flush()
    assert (bad.flushed, good.flushed) == (2, 2)


async def test_a_stop_flushes_all_copies_and_reports_one_that_is_not_whole() -> None:
    copies = [Copy(str(number)) for number in range(100)]
    for copy in copies[1:]:
        copy.owes_flush = False
    assert not await flush_at_stop(copies)
    copies[0].owes_flush = False
    assert await flush_at_stop(copies)
    assert {copy.flushed for copy in copies} == {2}
