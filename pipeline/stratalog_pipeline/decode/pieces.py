"""Cuts pieces out of a buffer into one Arrow array, by native code.

A binary array over the buffer has as its elements, in turn, what lies between two pieces and a piece; Arrow's `take`
copies every second one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stratalog.formats.batches.record_frames import Longs
from stratalog.formats.fields import Buffer


def cut_out(data: Buffer, at: Longs, size: Longs) -> pa.Array:
    """A binary array of the pieces of `data`, which rise; null where the size is -1.

    Requires: each piece lies in `data`, behind the one before. Cost: one copy of the pieces.
    """
    count = at.size
    if not count:
        return pa.array([], pa.binary())
    # Elements of this one are: what lies before a piece, the piece, what lies before the next...
    edges = np.empty(2 * count + 1, np.int64)
    edges[0] = at[0]
    edges[1::2] = at
    edges[2::2] = at + np.maximum(size, 0)
    if edges[-1] - edges[0] < 1 << 31:
        around = pa.Array.from_buffers(
            pa.binary(),
            2 * count,
            [None, pa.py_buffer((edges - edges[0]).astype(np.int32)), pa.py_buffer(data).slice(int(edges[0]))],
        )
    else:
        around = pa.Array.from_buffers(pa.large_binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    wanted = np.arange(1, 2 * count, 2)
    is_null = size < 0
    rows = pa.array(wanted, mask=is_null) if is_null.any() else pa.array(wanted)
    return around.take(rows).cast(pa.binary())
