"""One call to a store: what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from collections.abc import Iterator

import pytest

from stratalog.model.errors import DiskFull, OutcomeUnknown
from stratalog.objects.calls import StoreCalls
from stratalog.objects.directory import classify
from stratalog.objects.settings import StoreSettings
from stratalog.objects.stats import Operation

SETTINGS = StoreSettings(attempt_timeout_ms=20, deadline_ms=1_000, attempts=2, backoff_ms=1)


class Body(bytearray):
    """Bytes whose deallocation can be observed."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.fault("object-store-refuses-put")
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("is_hanging", [False, True], ids=["refused", "given up"])
async def test_a_put_that_fails_lets_its_bytes_go_with_its_error(is_hanging: bool) -> None:
    """A server's collector looks seldom: every try of a bucket that was full kept its megabytes."""
    calls = StoreCalls(SETTINGS, classify)
    body = Body(b"x")
    is_gone = weakref.ref(body)

    async def attempt(body: Body = body) -> None:
        if is_hanging:
            await asyncio.sleep(60)
        raise OSError(errno.ENOSPC, f"no room for {len(body)}")

    with pytest.raises(OutcomeUnknown if is_hanging else DiskFull):
        await calls.run(Operation.PUT, "a", attempt)
    del body, attempt
    await asyncio.sleep(0)  # the loop lets go of what it had to wake
    assert is_gone() is None


@pytest.mark.usefixtures("no_collector")
async def test_a_read_that_is_done_at_the_second_try_holds_nothing() -> None:
    calls = StoreCalls(SETTINGS, classify)
    failures = [OSError(errno.EIO, "not now")]

    async def attempt() -> Body:
        if failures:
            raise failures.pop()
        return Body(b"x")

    body = await calls.run(Operation.GET, "a", attempt)
    is_gone = weakref.ref(body)
    del body, attempt
    assert is_gone() is None
