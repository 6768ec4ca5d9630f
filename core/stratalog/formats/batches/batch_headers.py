"""The headers of many record batches as arrays: what `formats.batches.record_batch.parse_header` reads, of all at once.

A test holds this layout against that function; docs/formats.md section 2 has the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stratalog.formats.batches.record_frames import Longs
from stratalog.formats.fields import Buffer
from stratalog.model.batch import BATCH_HEADER_BYTES

LAYOUT: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
assert LAYOUT.itemsize == BATCH_HEADER_BYTES

_CODEC, _LOG_APPEND_TIME, _CONTROL = 0x07, 0x08, 0x20
_FIRST_BYTES: Final = np.arange(BATCH_HEADER_BYTES)


class BatchHeaders:
    """Those of batches that were checked and lie back to back; batch i is `[positions[i], positions[i + 1])`."""

    __slots__ = ("_fields", "ends", "positions")

    def __init__(self, data: Buffer, positions: Sequence[int] | Longs) -> None:
        """`positions` has one entry more than there are batches: where the last one ends."""
        places = np.asarray(positions, np.int64)
        self.positions, self.ends = places[:-1], places[1:]
        found = np.frombuffer(data, np.uint8)[self.positions[:, None] + _FIRST_BYTES]
        self._fields: npt.NDArray[Any] = found.reshape(-1).view(LAYOUT)

    def only(self, rows: Longs) -> BatchHeaders:
        """These of them."""
        chosen = BatchHeaders(b"", (0,))
        chosen.positions, chosen.ends, chosen._fields = self.positions[rows], self.ends[rows], self._fields[rows]
        return chosen

    def __len__(self) -> int:
        return int(self.positions.size)

    def longs(self, name: str) -> Longs:
        """A field of each, in the machine's own byte order."""
        column: Longs = self._fields[name].astype(np.int64)
        return column

    @property
    def end_offset(self) -> Longs:
        return self.longs("base_offset") + self.longs("last_offset_delta") + 1

    @property
    def codec(self) -> Longs:
        return self.longs("attributes") & _CODEC

    @property
    def is_log_append_time(self) -> npt.NDArray[np.bool_]:
        return self._has(_LOG_APPEND_TIME)

    @property
    def is_control(self) -> npt.NDArray[np.bool_]:
        return self._has(_CONTROL)

    def _has(self, attribute: int) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self.longs("attributes") & attribute) != 0
        return found
