"""How far the file of an active segment is prepared beyond its end: zeros in the page cache.

The page cache takes a write in folios as large as the write allows from where it begins; batches end anywhere, so each
append would be cut into many small folios, and each block looked up and reserved by itself. An append that passes the
room therefore writes zeros behind it up to the next boundary, in the same call, and the appends that follow overwrite
folios that are there. Measured on ext4, Linux 6.18: 64 KiB in 14 us instead of 34, 16 KiB in 4 us instead of 10
(docs/decisions/0008-room-ahead-of-the-end.md).

The room grows with what is used: a file that takes small appends has none, one that fills its rooms gets larger ones.
Invariant: what lies between the end of the batches and the end of the room is zero, or was never written.
"""

from __future__ import annotations

LARGEST_ROOM_BYTES = 128 << 10
"""256 KiB can cost far more (`model/write_steps.py`); what lies in 64 KiB takes a consumer more CPU to get."""
LEAST_APPEND_BYTES = 4096
"""Smaller appends make no room: 10,000 quiet shards would hold gigabytes of zeros."""
_FIRST_ROOM_BYTES = 16 << 10
_ZEROS = memoryview(bytes(LARGEST_ROOM_BYTES))


class Preallocation:
    """The room of one file. Call `zeros_behind` for each append that ends beyond `end_position`."""

    __slots__ = ("_room_bytes", "end_position")

    def __init__(self) -> None:
        self.end_position = 0
        self._room_bytes = _FIRST_ROOM_BYTES // 2

    def zeros_behind(self, append_end: int) -> memoryview:
        """What to write behind an append that ends there; at most LARGEST_ROOM_BYTES, up to a multiple of the room."""
        self._room_bytes = min(self._room_bytes * 2, LARGEST_ROOM_BYTES)
        return _ZEROS[: -append_end % self._room_bytes]

    def forget(self) -> None:
        """The file was cut at its end."""
        self.end_position = 0
