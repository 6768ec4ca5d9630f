"""S3, Google and Azure behind a proxy that misbehaves: what a server did, and what its client may believe
(F42-F49)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest

from stratalog.model.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable
from stratalog.objects import ObjectStore, Operation, StoreSettings
from support.azure_server import AzureServer
from support.fault_proxy import (
    BlackHole,
    CutBody,
    FaultProxy,
    HungAnswer,
    Latency,
    LostAnswer,
    Reset,
    Rule,
    ServerError,
    ShortBody,
)
from support.gcs_server import GcsServer
from support.s3_servers import S3Server

Opener = Callable[..., ObjectStore]
Server: TypeAlias = S3Server | GcsServer | AzureServer

QUICK = StoreSettings(attempt_timeout_ms=1_500, deadline_ms=9_000, attempts=4, backoff_ms=1, backoff_cap_ms=10)


@pytest.fixture(
    params=[
        "moto",
        pytest.param("versitygw", marks=pytest.mark.real_s3),
        "gcs",
        pytest.param("azurite", marks=pytest.mark.azurite),
    ]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.port) as running:
        yield running


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return "faults/" + "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def store(server: Server, proxy: FaultProxy, prefix: str, opener: Opener) -> ObjectStore:
    return opener(server.through(proxy.port).url(prefix), QUICK)


@pytest.fixture
def direct(server: Server, prefix: str, opener: Opener) -> ObjectStore:
    """The same place without the proxy: what is really there."""
    return opener(server.url(prefix))


async def test_the_proxy_by_itself_changes_nothing(store: ObjectStore, proxy: FaultProxy) -> None:
    await store.put("a/one", [b"x" * 100_000])
    assert await store.get("a/one") == b"x" * 100_000
    assert [info.key async for info in store.list("")] == ["a/one"]
    await store.delete(["a/one"])
    deletion = "DELETE" if store.url.startswith("gs:") else "POST"
    assert proxy.seen.requests == {"PUT": 1, "GET": 2, deletion: 1}
    assert not proxy.seen.faults


@pytest.mark.fault("put-succeeded-answer-lost")
async def test_a_put_whose_answer_was_lost_is_unknown_and_landed_once(
    store: ObjectStore, direct: ObjectStore, proxy: FaultProxy
) -> None:
    for number, fault in enumerate([LostAnswer(), HungAnswer()]):
        rule = proxy.add(Rule(fault, methods={"PUT"}, times=1))
        with pytest.raises(OutcomeUnknown):
            await store.put(f"a/{number}", [b"mine"])
        assert rule.hits == 1
        assert await direct.get(f"a/{number}") == b"mine"
        with pytest.raises(AlreadyExists):
            await store.put(f"a/{number}", [b"mine"])
    assert proxy.seen.requests["PUT"] == 4


async def test_a_put_that_never_arrived_is_unknown_and_did_not_land(
    store: ObjectStore, direct: ObjectStore, proxy: FaultProxy
) -> None:
    for number, fault in enumerate([BlackHole(), Reset()]):
        proxy.add(Rule(fault, methods={"PUT"}, times=1))
        with pytest.raises(OutcomeUnknown):
            await store.put(f"a/{number}", [b"mine"])
        with pytest.raises(NotFound):
            await direct.get(f"a/{number}")


async def test_slow_down_on_a_put_is_handed_to_the_caller_at_once(store: ObjectStore, proxy: FaultProxy) -> None:
    proxy.add(Rule(ServerError(), methods={"PUT"}, times=1))
    with pytest.raises(Unavailable, match="SlowDown"):
        await store.put("a/one", [b"x"])
    assert proxy.seen.requests["PUT"] == 1
    await store.put("a/one", [b"x"])


@pytest.mark.parametrize(
    "fault", [ServerError(), ServerError(500, "InternalError"), CutBody(1000), ShortBody(3), BlackHole(), LostAnswer()]
)
async def test_a_read_gets_over_one_fault(
    fault: ServerError | CutBody | ShortBody | BlackHole | LostAnswer,
    store: ObjectStore,
    direct: ObjectStore,
    proxy: FaultProxy,
) -> None:
    body = bytes(range(256)) * 64
    await direct.put("a/one", [body])
    rule = proxy.add(Rule(fault, methods={"GET"}, times=1))
    assert await store.get_range("a/one", 16, 16_000) == body[16:16_000]
    assert rule.hits == 1
    assert store.stats[Operation.GET].retries == 1


async def test_a_body_that_stays_short_says_nothing_of_the_object(store: ObjectStore, proxy: FaultProxy) -> None:
    await store.put("a/one", [b"x" * 1_000])
    proxy.add(Rule(ShortBody(1), methods={"GET"}))
    with pytest.raises(Unavailable):
        await store.get_range("a/one", 0, 1_000)
    with pytest.raises(Unavailable):
        await store.get("a/one")


async def test_lists_and_deletions_get_over_faults(store: ObjectStore, proxy: FaultProxy) -> None:
    for name in "abc":
        await store.put(f"a/{name}", [b"x"])
    proxy.add(Rule(ServerError(), methods={"GET", "POST", "DELETE"}, times=2))
    proxy.add(Rule(LostAnswer(), methods={"POST", "DELETE"}, times=1))
    assert [info.key async for info in store.list("a/")] == ["a/a", "a/b", "a/c"]
    await store.delete(["a/a", "a/b", "a/c"])
    assert [info.key async for info in store.list("a/")] == []


async def test_a_store_that_comes_back_is_used_again(store: ObjectStore, proxy: FaultProxy) -> None:
    await store.put("a/one", [b"x"])
    await proxy.refuse()
    with pytest.raises(Unavailable):
        await store.get("a/one")
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await store.put("a/two", [b"y"])
    await proxy.accept()
    assert await store.get("a/one") == b"x"
    await store.put("a/two", [b"y"])


async def test_a_share_of_errors_is_absorbed(store: ObjectStore, proxy: FaultProxy) -> None:
    await store.put("a/one", [b"x" * 100])
    proxy.add(Rule(ServerError(), methods={"GET"}, share=0.3))
    proxy.add(Rule(Latency(0.001, 0.005)))
    answers = await asyncio.gather(*(store.get_range("a/one", 0, 100) for _ in range(40)), return_exceptions=True)
    good = [answer for answer in answers if answer == b"x" * 100]
    assert len(good) >= 35
    assert proxy.seen.faults["ServerError"] == store.stats[Operation.GET].errors["slow_down"] > 0
