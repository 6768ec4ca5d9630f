"""Puts an object whose name and content follow from the work: doing it again finds it there, which is as good.

Requires: whoever uses the name puts the same content, and the store never replaces (`objects/store.py`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from stratalog.model.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from stratalog.objects import ObjectStore

_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.2


async def put_once(store: ObjectStore, key: str, body: bytes, storage_class: str = "") -> bool:
    """Returns: whether this call put the object; False if it existed, from another job or from an attempt whose answer
    was lost. `storage_class`: see `ObjectStore.put`.

    Raises: Unavailable if it failed; then the object may or may not exist.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            await store.put(key, [body], storage_class)
            return True
        except AlreadyExists:
            return False
        except OutcomeUnknown:
            if await _is_there(store, key):
                return False
        except Unavailable:
            if attempt == _ATTEMPTS:
                raise
        await asyncio.sleep(_PAUSE_S * attempt)
    raise Unavailable(f"{key} could not be put in {_ATTEMPTS} attempts, whose answers were lost: run the job again")


async def put_or_read(store: ObjectStore, key: str, body: bytes) -> bytes:
    """Returns: the object's content afterwards: `body`, or the content that another job put before. Raises:
    Unavailable."""
    return body if await put_once(store, key, body) else await store.get(key)


async def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except NotFound:
        return False
    return True
