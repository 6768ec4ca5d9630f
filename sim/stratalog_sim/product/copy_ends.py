"""Where the copies of segments end on simulated disks. Each look reads only what changed since the one before."""

from __future__ import annotations

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog_sim.product.files import Inode


class CopyEnds:
    """Of all files of a world. A file keeps one mark of what changed, so only one of these may read it."""

    def __init__(self) -> None:
        self._known: dict[tuple[Inode, bool], list[tuple[int, int]]] = {}
        """By file, in memory or on the disk: the position behind each whole batch, and the offset there."""

    def end_of(self, inode: Inode, key: SegmentKey, *, is_on_disk: bool) -> int:
        """Where the whole batches end that memory has, or that the disk has for sure."""
        content, size = (inode.durable, inode.durable_size) if is_on_disk else (inode.data, len(inode.data))
        batches = self._known.setdefault((inode, is_on_disk), [])
        same = inode.same_on_disk if is_on_disk else inode.same_in_memory
        while batches and batches[-1][0] > same:
            batches.pop()
        begin, end = batches[-1] if batches else (SEGMENT_HEADER_BYTES, key.base_offset)
        for position, end in _batches_from(bytes(content[begin:size])):
            batches.append((begin + position, end))
        if is_on_disk:
            inode.same_on_disk = size
        else:
            inode.same_in_memory = size
        return end if any(content[: min(size, SEGMENT_HEADER_BYTES)]) else key.base_offset


def end_of(data: bytes, key: SegmentKey) -> int:
    """Where the whole batches end. A file whose header a power cut took is set aside, whatever lies behind it."""
    batches = _batches_from(data[SEGMENT_HEADER_BYTES:]) if any(data[:SEGMENT_HEADER_BYTES]) else []
    return batches[-1][1] if batches else key.base_offset


def _batches_from(data: bytes) -> list[tuple[int, int]]:
    """Behind each whole batch: the position in `data`, and the offset. Room ahead, or a batch that is not whole, ends
    them."""
    found = []
    try:
        for at, header in walk(data, source="disk"):
            found.append((at + header.size_bytes, header.end_offset))
    except Corrupt:
        pass
    return found
