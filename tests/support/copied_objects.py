"""Thousands of objects from one store into another, quickly."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stratalog.objects import ObjectStore

_AT_ONCE = 32


async def move_objects(source: ObjectStore, target: ObjectStore, target_url: str) -> None:
    """All of `source`. Into a directory they are written without a flush for each of them."""
    made = [info.key async for info in source.list("")]
    for start in range(0, len(made), _AT_ONCE):
        await asyncio.gather(*(_copy(key, source, target, target_url) for key in made[start : start + _AT_ONCE]))
    await source.delete(made)


async def _copy(key: str, source: ObjectStore, target: ObjectStore, target_url: str) -> None:
    body = await source.get(key)
    if "://" in target_url:
        await target.put(key, [body])
        return
    path = Path(target_url) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
