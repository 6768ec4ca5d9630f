"""Memory for large reads: used again, never while it is still being read, freed in the end."""

from __future__ import annotations

import threading

from stratalog.objects.reused_buffers import LEAST_BYTES, ReusedBuffers

MIB = 1 << 20


def test_a_buffer_is_used_again_once_the_last_view_of_it_is_gone() -> None:
    buffers = ReusedBuffers(16 * MIB)
    first = buffers.allocate(8 * MIB)
    name = id(first.obj)
    tail = first[5 * MIB :]
    del first
    assert id(buffers.allocate(MIB).obj) != name
    del tail
    assert id(buffers.allocate(7 * MIB).obj) == name


def test_what_a_put_still_reads_is_never_given_to_another() -> None:
    buffers = ReusedBuffers(64 * MIB)
    views = [buffers.allocate(2 * MIB) for _ in range(20)]
    for number, view in enumerate(views):
        view[:8] = number.to_bytes(8, "big")
    assert [int.from_bytes(view[:8], "big") for view in views] == list(range(20))


def test_no_more_is_kept_than_the_limit_and_none_of_it_without_need() -> None:
    buffers = ReusedBuffers(8 * MIB)
    views = [buffers.allocate(3 * MIB) for _ in range(5)]
    assert buffers.kept_bytes == 6 * MIB
    assert len({id(view.obj) for view in views}) == 5
    del views
    larger = buffers.allocate(8 * MIB)
    assert buffers.kept_bytes == 8 * MIB, "smaller ones that nobody uses make room"
    buffers.drop()
    assert buffers.kept_bytes == 0
    assert len(larger) == 8 * MIB


def test_small_reads_take_no_place() -> None:
    buffers = ReusedBuffers(8 * MIB)
    assert len(buffers.allocate(LEAST_BYTES - 1)) == LEAST_BYTES - 1
    assert buffers.kept_bytes == 0


def test_many_threads_get_each_a_buffer_of_its_own() -> None:
    buffers = ReusedBuffers(8 * MIB)
    mixed: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            view = buffers.allocate(MIB)
            view[0] = view[-1] = number
            if view[0] != number or view[-1] != number:
                mixed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []
