"""Packed chunks are read through any store; one that is closed under its readers fails them in words."""

from __future__ import annotations

import asyncio

import pytest

from stratalog.model.errors import Unavailable
from stratalog.objects import open_store, unpacking
from support.packed_chunks import packed_sample

KEY = "cluster/part.packed"


async def test_readers_of_a_store_that_is_closed_get_their_bytes_or_an_error_and_are_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unpacking, "STEP_BYTES", 1)
    part, packed = packed_sample(60)
    store = open_store("memory:")
    await store.put(KEY, [packed])
    assert await store.get(KEY) == part
    readers = [asyncio.create_task(store.get(KEY)) for _ in range(20)]
    small = asyncio.create_task(store.get_range(KEY, 600, 700))
    await small
    await store.close()
    for told in await asyncio.gather(*readers, return_exceptions=True):
        assert told == part or isinstance(told, Unavailable)
    with pytest.raises(Unavailable, match="the store is closed"):
        await store.get(KEY)
