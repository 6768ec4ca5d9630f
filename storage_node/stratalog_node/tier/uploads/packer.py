"""Packs chunks before they are put, for topics with `remote.compression=zstd` (docs/formats.md section 17).

One chunk at a time, on a thread of its own: other parts do not wait for it, and packing takes one core at most. A
chunk stays as it is if packing does not pay, and also if MOST_WAITING others wait already: the data must reach the
store first, and `stratalog pipeline compact` packs it later.
Memory: the part once more as one buffer, and the packed chunk twice, of one chunk at a time.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.packed_chunk import is_worth_packing, pack_part
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.fields import Buffer
from stratalog.machines.tiering.chunk_packing import MOST_WAITING, is_mostly_compressed
from stratalog_node.tier.store.stats import TierStats

_TRIAL_BYTES: Final = 256 << 10
_COPIED_AT_ONCE_BYTES: Final = 1 << 20
"""One copy of 16 MiB into fresh memory holds the interpreter, and with it the event loop, for 16 ms."""


class Packer:
    """On the event loop. Call `close` when it is no longer used."""

    def __init__(self, stats: TierStats) -> None:
        self._stats = stats
        self._asked = 0
        self._worker: ThreadPoolExecutor | None = None

    async def pack(self, part: Sequence[Buffer], index_position: int, *, source: str) -> bytes | None:
        """A packed chunk of a whole part, whose batches end at `index_position`; None where the part is to be put as it
        is. Raises: Corrupt."""
        if self._asked > MOST_WAITING:
            self._stats.chunks_left_unpacked += 1
            return None
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "tier-packer")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._worker, pack_if_worth, part, index_position, source
            )
        finally:
            self._asked -= 1

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)


def pack_if_worth(part: Sequence[Buffer], index_position: int, source: str) -> bytes | None:
    """None where clients have compressed most of the part's batches, where a trial on some of them spares little, or
    where the whole does."""
    whole = _joined(part)
    batches = whole[PART_HEADER_BYTES:index_position]
    headers = (header for _, header in walk(batches, source=source, verify=False))
    plain_bytes = sum(header.size_bytes for header in headers if header.compression == Codec.NONE)
    if is_mostly_compressed(plain_bytes, len(batches)) or not is_worth_packing(batches[:_TRIAL_BYTES]):
        return None
    return pack_part(whole, source=source)


def _joined(part: Sequence[Buffer]) -> memoryview:
    whole = memoryview(mmap.mmap(-1, sum(map(len, part))))
    at = 0
    for buffer in part:
        view = memoryview(buffer)
        for start in range(0, len(view), _COPIED_AT_ONCE_BYTES):
            some = view[start : start + _COPIED_AT_ONCE_BYTES]
            whole[at : at + len(some)] = some
            at += len(some)
    return whole
