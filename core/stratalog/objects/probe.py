"""Does this store really keep what is there?

Some servers accept `If-None-Match` and overwrite nevertheless (F46), so the promise is tried, not believed.
Cost: five requests, once, when a node starts to use a store.
"""

from __future__ import annotations

import re
from contextlib import suppress
from uuid import uuid4

from stratalog.model.errors import AlreadyExists, InvalidRequest, OutcomeUnknown, StratalogError
from stratalog.objects.store import Capabilities, ObjectStore

PROBE_PREFIX = "probe/"
_ATTEMPTS = 3
_NAMED = re.compile(rf"^\w+ .*?/{PROBE_PREFIX}[0-9a-f]{{32}}: ")
_FIRST = b"stratalog probe: first"
_SECOND = b"stratalog probe: second, must not be seen"


async def probe_store(store: ObjectStore) -> Capabilities:
    """Put an object twice, read it back whole and in part, delete it.

    Where the store does not say what became of a put, all is tried again under another name. Some servers answer 409
    to a put beside the delete of another probe.

    Raises: InvalidRequest when the store overwrites or garbles; whatever the store raises when it is away.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(OutcomeUnknown):
            return await _probe_once(store)
    return await _probe_once(store)


async def _probe_once(store: ObjectStore) -> Capabilities:
    key = f"{PROBE_PREFIX}{uuid4().hex}"
    try:
        await store.put(key, [_FIRST])
        await _try(store, key)
    except StratalogError:
        # What is wrong with the store matters more than what it leaves behind.
        with suppress(StratalogError):
            await store.delete([key])
        raise
    await store.delete([key])
    return Capabilities(conditional_put=True)


def without_name(trouble: str) -> str:
    """What a failed probe says, without the request and the name of its object, which is new each time."""
    return _NAMED.sub("", trouble)


async def _try(store: ObjectStore, key: str) -> None:
    try:
        await store.put(key, [_SECOND])
    except AlreadyExists:
        pass
    else:
        raise InvalidRequest(
            f"{store.url}: a conditional put overwrote an existing object (If-None-Match is ignored); "
            "use a store or a server version with conditional puts, or two writers could destroy each other's data"
        )
    if await store.get(key) != _FIRST or await store.get_range(key, 1, 5) != _FIRST[1:5]:
        raise InvalidRequest(f"{store.url}: an object came back changed; this store cannot be used")
