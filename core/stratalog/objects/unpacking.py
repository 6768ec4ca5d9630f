"""Reads packed chunks as the parts they hold (docs/formats.md section 17), over any store.

A reader of parts reads packed ones the same way: for a key that ends in `.packed`, positions of `get`, `get_range` and
`get_range_view` are those of the unpacked part. `put`, `head` and `list` see the objects as they are stored. Cost of a
range: one read of the frames that cover it, and before the first one of an object two small reads, which are
remembered. Memory: a range, its frames, and at most LAYOUT_BYTES of what is remembered. Frames are opened by threads
of this store's own, two at a time, STEP_BYTES in a row, so a small read does not wait for one of a whole part. Lives on
one event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from stratalog.formats.bucket.object_names import is_packed
from stratalog.formats.bucket.packed_chunk import (
    PACK_HEADER_BYTES,
    PackHeader,
    PackLayout,
    Unpacking,
    decode_pack_header,
    decode_pack_table,
)
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.model.errors import Corrupt, Unavailable
from stratalog.objects.keys import check_range
from stratalog.objects.stats import StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo, ObjectStore

LAYOUT_BYTES: Final = 16 << 20
STEP_BYTES: Final = 1 << 20
_THREADS: Final = 2
_DICTIONARY_TABLES_BYTES: Final = 32 << 10
"""What zstd makes of any dictionary."""


class UnpackingStore:
    """An `ObjectStore` over another one, which it closes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._layouts: OrderedDict[str, PackLayout] = OrderedDict()
        self._held_bytes = 0
        self._learning: dict[str, asyncio.Lock] = {}
        self._threads: ThreadPoolExecutor | None = None

    # As they are stored ---------------------------------------------------------------------------------------------
    @property
    def stats(self) -> StoreStats:
        return self._store.stats

    @property
    def url(self) -> str:
        return self._store.url

    async def probe(self) -> Capabilities:
        return await self._store.probe()

    async def put(self, key: str, body: Sequence[bytes | memoryview], storage_class: str = "") -> None:
        await self._store.put(key, body, storage_class)

    async def head(self, key: str) -> ObjectInfo:
        return await self._store.head(key)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._store.list(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._forget(key)
        await self._store.delete(keys)

    async def close(self) -> None:
        if self._threads is not None:
            # A read that waits for a thread is not cancelled: cancelling it would cancel another reader that was not.
            self._threads.shutdown(wait=False)
        await self._store.close()

    # As what they hold ----------------------------------------------------------------------------------------------
    async def get(self, key: str) -> bytes:
        if not is_packed(key):
            return await self._store.get(key)
        return bytes(await self._read(key, 0, None))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if not is_packed(key):
            return await self._store.get_range(key, start, end)
        return bytes(await self._read(key, start, end))

    async def get_range_view(self, key: str, start: int, end: int) -> memoryview:
        if not is_packed(key):
            return await self._store.get_range_view(key, start, end)
        return await self._read(key, start, end)

    async def _read(self, key: str, start: int, end: int | None) -> memoryview:
        if end is not None:
            check_range(key, start, end)
            if end <= PART_HEADER_BYTES and key not in self._layouts:
                header = await self._header(key)
                return memoryview(header.part_header)[start:end]
        known = self._layouts.get(key)
        if known is not None:
            self._layouts.move_to_end(key)
            try:
                return await self._read_by(known, key, start, end)
            except Corrupt:
                self._forget(key)  # a repair may have put an object there that is packed in another way
        return await self._read_by(await self._layout(key), key, start, end)

    async def _read_by(self, layout: PackLayout, key: str, start: int, end: int | None) -> memoryview:
        end = layout.header.part_bytes if end is None else end
        if end > layout.header.part_bytes:
            size = layout.header.part_bytes
            raise Corrupt(f"range [{start}, {end}) of a part of {size} bytes", source=key, position=start)
        frames = layout.frames_of(start, end)
        data = memoryview(b"")
        if frames:
            data = await self._store.get_range_view(key, *layout.stored_range(frames))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="unpack")
        unpacking = Unpacking(layout, data, frames, start, end, source=key)
        loop = asyncio.get_running_loop()
        while True:
            try:
                opening = loop.run_in_executor(self._threads, unpacking.unpack_more, STEP_BYTES)
            except RuntimeError as error:
                raise Unavailable(f"{self.url}/{key}: the store is closed") from error
            out = await opening
            if out is not None:
                return out

    async def _header(self, key: str) -> PackHeader:
        return decode_pack_header(await self._store.get_range(key, 0, PACK_HEADER_BYTES), source=key)

    async def _layout(self, key: str) -> PackLayout:
        """Read once where several ask for it at a time."""
        lock = self._learning.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                known = self._layouts.get(key)
                return known if known is not None else await self._read_layout(key)
        finally:
            if not lock.locked():
                self._learning.pop(key, None)

    async def _read_layout(self, key: str) -> PackLayout:
        header = await self._header(key)
        table = await self._store.get_range_view(key, PACK_HEADER_BYTES, header.frames_position)
        layout = await asyncio.to_thread(decode_pack_table, table, header, source=key)
        self._forget(key)
        self._layouts[key] = layout
        self._held_bytes += _held_bytes(layout)
        while self._held_bytes > LAYOUT_BYTES and len(self._layouts) > 1:
            _, oldest = self._layouts.popitem(last=False)
            self._held_bytes -= _held_bytes(oldest)
        return layout

    def _forget(self, key: str) -> None:
        layout = self._layouts.pop(key, None)
        if layout is not None:
            self._held_bytes -= _held_bytes(layout)


def _held_bytes(layout: PackLayout) -> int:
    """About: three numbers for each frame, and the dictionary twice, as it is and as zstd reads it."""
    tables = 0 if layout.dictionary is None else _DICTIONARY_TABLES_BYTES
    return PACK_HEADER_BYTES + 2 * layout.header.table_bytes + tables
