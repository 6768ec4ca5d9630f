"""More files wait for their flush than may be open: what asks is refused, cheaply, and heard once there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog_node.disk.descriptors import Descriptors


class Waiting:
    """A file that holds bytes that were not flushed."""

    def __init__(self, descriptors: Descriptors, number: int) -> None:
        self.path = Path(str(number))
        self.pins = 0
        self.was_used = False
        self.is_flushed = False
        self.looks = 0
        self._descriptors = descriptors

    @property
    def must_stay_open(self) -> bool:
        self.looks += 1
        return not self.is_flushed

    def close(self) -> None:
        self._descriptors.closed(self)


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def crowded(clock: Clock) -> tuple[Descriptors, list[Waiting]]:
    descriptors = Descriptors(1_000, steady_ns=clock)
    files = [Waiting(descriptors, number) for number in range(descriptors.most)]
    for file in files:
        descriptors.opened(file)
    return descriptors, files


@pytest.mark.fault("segment-files-wait-flush")
def test_thousands_of_refusals_at_once_cost_one_check_of_the_files() -> None:
    descriptors, files = crowded(Clock())
    before = sum(file.looks for file in files)
    for _ in range(5_000):
        with pytest.raises(Unavailable, match="wait for their flush"):
            descriptors.check_room()
    assert sum(file.looks for file in files) - before <= 2 * len(files)


@pytest.mark.fault("segment-files-wait-flush")
def test_there_is_room_soon_after_files_were_flushed() -> None:
    clock = Clock()
    descriptors, files = crowded(clock)
    with pytest.raises(Unavailable):
        descriptors.check_room()
    for file in files:
        file.is_flushed = True
    clock.now_ns += 10_000_000
    descriptors.check_room()
    assert descriptors.open_count <= descriptors.limit


@pytest.mark.fault("segment-files-wait-flush")
def test_a_file_that_closes_makes_room_without_a_search() -> None:
    descriptors, files = crowded(Clock())
    with pytest.raises(Unavailable):
        descriptors.check_room()
    files[0].close()
    descriptors.check_room()
