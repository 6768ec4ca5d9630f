"""One put, and what its failure means: doubtful or refused. There is nothing else (F46, F49)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratalog.formats.fields import Buffer
from stratalog.model.errors import AlreadyExists, Conflict, InvalidRequest, OutcomeUnknown, StratalogError
from stratalog.objects.store import ObjectStore


class PutDoubtful(Exception):
    """It may have happened: a lost answer, no answer in time, or a name that is taken (perhaps by this very put)."""


class PutRefused(Exception):
    """It did not happen: the store said no, or cannot be reached."""


class RequestRefused(PutRefused):
    """The store does not take such a request, such as one for a storage class that it does not have."""


async def put(
    store: ObjectStore, object_key: str, body: Sequence[Buffer], timeout_ms: int, storage_class: str = ""
) -> int:
    """Returns: bytes put. Raises: PutDoubtful, PutRefused. `storage_class`: see `ObjectStore.put`."""
    buffers = [buffer if isinstance(buffer, bytes) else memoryview(buffer) for buffer in body]
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            await store.put(object_key, buffers, storage_class)
    except TimeoutError as error:
        raise PutDoubtful(f"put {object_key}: no answer within {timeout_ms} ms") from error
    except (OutcomeUnknown, AlreadyExists, Conflict) as error:
        raise PutDoubtful(str(error)) from error
    except InvalidRequest as error:
        raise RequestRefused(str(error)) from error
    except StratalogError as error:
        raise PutRefused(str(error)) from error
    return sum(len(buffer) for buffer in buffers)
