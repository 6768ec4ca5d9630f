"""What the answers of an object store mean to its callers: the same for each kind of store."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from stratalog.model.errors import Unavailable
from stratalog.objects import ObjectStore, StoreSettings
from support.scripted_server import Script, scripted_server

QUICK = StoreSettings(attempt_timeout_ms=2_000, deadline_ms=5_000, attempts=3, backoff_ms=1, backoff_cap_ms=5)


class Means(NamedTuple):
    """What an answer means to each call."""

    answer: bytes
    put: type[Exception]
    read: type[Exception]
    delete: type[Exception] | None
    """None: all is well."""


async def require_meaning(means: Means, open_at: Callable[[int], ObjectStore]) -> None:
    """`open_at`: opens the store at a port of this machine, which gives that answer to every request."""
    script = Script(means.answer)
    async with scripted_server(script) as server:
        store = open_at(server.port)
        calls = (store.put("k/a", [b"abc"]), store.get_range("k/a", 2, 6), store.delete(["k/a", "k/b"]))
        for call, expected in zip(calls, means[1:], strict=True):
            if expected is None:
                await call
                continue
            with pytest.raises(expected, match="k/a") as caught:
                await call
            assert type(caught.value) is expected, repr(caught.value)
    assert sum(one.startswith("PUT") for one in script.requests) == 1, "a put is never sent twice under one name"


async def require_no_bucket(store: ObjectStore, words: str) -> None:
    """Every call is refused with these words (a pattern): a missing bucket is never a missing object."""
    calls = (store.get("a"), store.head("a"), store.put("a", [b"x"]), store.delete(["a"]), store.delete(["a", "b"]))
    for call in calls:
        with pytest.raises(Unavailable, match=words):
            await call
    with pytest.raises(Unavailable):
        async for _ in store.list("a/"):
            pass
