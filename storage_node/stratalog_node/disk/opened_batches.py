"""Opens batches for the times of their records, with bounded memory, on threads.

A batch of a few kilobytes may have gigabytes of records. What takes more than `_USUAL_BYTES` decompressed is opened by
one thread at a time, and above `LARGEST_DECODED_BYTES` not at all: such a batch costs that much memory once per node.
Requires: the batch was checked (CRC). Never on the event loop.
"""

from __future__ import annotations

import threading
import time

from stratalog.formats.batches.offered_batch import LARGEST_DECODED_BYTES
from stratalog.formats.batches.record_times import BatchTimes, Opened, times_of
from stratalog.formats.fields import Buffer
from stratalog.model.batch import BatchHeader

_USUAL_BYTES = 16 << 20
_LARGE = threading.Lock()


def opened_times(batch: Buffer, header: BatchHeader) -> BatchTimes:
    """The times of the records of one batch. The interpreter is given up within large ones."""
    times = times_of(batch, header, max_bytes=_USUAL_BYTES, pause=_pause)
    if times.opened is Opened.TOO_LARGE:
        with _LARGE:
            times = times_of(batch, header, max_bytes=LARGEST_DECODED_BYTES, pause=_pause)
    return times


def _pause() -> None:
    time.sleep(0)
