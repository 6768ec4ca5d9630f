"""Which file of a segment counts, where two directories have one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.further_directories import OpenedDirectory
from stratalog_node.disk.layout import FurtherDirectory, NodeLayout, segment_path
from stratalog_node.shards.moves.copy_places import SecondFile, choose_places

_KEY = SegmentKey(UUID(int=7), 0, 0, 0)


def _chosen(tmp_path: Path, first: int | None, further: int, sealed_bytes: int | None) -> tuple[Path, list[SecondFile]]:
    """Sizes are of batches; None: no file, or a segment that is not sealed."""
    layout = NodeLayout(tmp_path / "first")
    if first is not None:
        path = segment_path(layout.root, _KEY)
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(SEGMENT_HEADER_BYTES + first))
    opened = OpenedDirectory(FurtherDirectory(tmp_path / "hdd", "hdd"), {_KEY: SEGMENT_HEADER_BYTES + further})
    seal = None if sealed_bytes is None else SimpleNamespace(size_bytes=sealed_bytes)
    record: Any = SimpleNamespace(seal=seal)
    seconds = choose_places(layout, [opened], lambda key: record)
    return layout.moved.get(_KEY, layout.root), seconds


@pytest.mark.parametrize(
    ("first", "further", "sealed_bytes", "chosen"),
    [
        (None, 100, 100, "hdd"),
        (100, 100, 100, "first"),
        (60, 100, 100, "hdd"),
        (100, 60, 100, "first"),
        (60, 100, None, "hdd"),
        (100, 60, None, "first"),
        (100, 100, None, "first"),
        (40, 60, 100, "hdd"),
    ],
)
def test_a_whole_file_counts_and_of_an_unknown_end_the_longest(
    tmp_path: Path, first: int | None, further: int, sealed_bytes: int | None, chosen: str
) -> None:
    place, seconds = _chosen(tmp_path, first, further, sealed_bytes)
    assert place == tmp_path / chosen
    others = {tmp_path / "first", tmp_path / "hdd"} - {place}
    assert {second.root for second in seconds} == (set() if first is None else others)
