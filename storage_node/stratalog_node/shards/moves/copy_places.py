"""Decides at a start which file of each segment counts, where several directories of the node have one.

A move gives the new file its name once it is flushed and its digest is proven, and removes the old one after that. So a
start may find both, both whole, or a copy that was made again while its directory was away. Exactly one counts from
here on; `moves.py` removes the other once the one that counts has been proven.
Blocking, before shards are recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_node.disk.further_directories import OpenedDirectory
from stratalog_node.disk.layout import NodeLayout, segment_path


class SecondFile(NamedTuple):
    """A file of a segment besides the one that counts."""

    key: SegmentKey
    root: Path


def choose_places(
    layout: NodeLayout, opened: Iterable[OpenedDirectory], find: Callable[[SegmentKey], Segment | None]
) -> list[SecondFile]:
    """Fill in `layout.moved`. `find`: the segment's record. Returns: the files that do not count."""
    others: dict[SegmentKey, list[tuple[Path, int]]] = {}
    for one in opened:
        for key, size_bytes in one.sizes.items():
            others.setdefault(key, []).append((one.directory.root, size_bytes))
    seconds: list[SecondFile] = []
    for key, files in others.items():
        with suppress(OSError):
            files.insert(0, (layout.root, segment_path(layout.root, key).stat().st_size))
        record = find(key)
        chosen = _chosen(files, None if record is None or record.seal is None else record.seal.size_bytes)
        if chosen != layout.root:
            layout.moved[key] = chosen
        seconds += [SecondFile(key, root) for root, _ in files if root != chosen]
    return seconds


def _chosen(files: list[tuple[Path, int]], sealed_bytes: int | None) -> Path:
    """`files`: the first directory's comes first. Of a sealed segment the first that is long enough counts; of one
    whose record says no end, the longest: each is a front of the same log (an offset is assigned once in an epoch)."""
    if sealed_bytes is not None:
        whole = [root for root, size_bytes in files if size_bytes >= SEGMENT_HEADER_BYTES + sealed_bytes]
        if whole:
            return whole[0]
    return max(files, key=lambda one: one[1])[0]
