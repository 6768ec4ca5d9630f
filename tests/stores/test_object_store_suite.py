"""What every object store promises: directory, memory, S3 by moto and by a real versitygw process, Google's
dialect of S3 over moto, Azure by Azurite."""

from __future__ import annotations

import asyncio
import os

import pytest

from stratalog.model.errors import AlreadyExists, Corrupt, InvalidRequest, NotFound, OutcomeUnknown
from stratalog.objects import ObjectStore, Operation
from stratalog.telemetry.metrics import MetricRegistry


async def keys_below(store: ObjectStore, prefix: str) -> list[str]:
    return [info.key async for info in store.list(prefix)]


async def test_a_probe_finds_conditional_puts_and_leaves_nothing_behind(store: ObjectStore) -> None:
    assert (await store.probe()).conditional_put
    assert await keys_below(store, "") == []


async def test_an_object_comes_back_as_it_went_in(store: ObjectStore) -> None:
    body = os.urandom(300_000)
    await store.put("data/one", [body[:100], memoryview(body)[100:200_000], b"", body[200_000:]])
    assert await store.get("data/one") == body
    assert (await store.head("data/one")).size_bytes == len(body)


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    await store.put("data/empty", [])
    assert await store.get("data/empty") == b""
    assert (await store.head("data/empty")).size_bytes == 0


@pytest.mark.fault("503-slowdown-1-000")
@pytest.mark.parametrize("size", [5 * 1024 * 1024, 20 * 1024 * 1024 + 7])
async def test_a_large_object_is_still_one_conditional_put(store: ObjectStore, size: int) -> None:
    body = os.urandom(1 << 16) * (size // (1 << 16)) + b"x" * (size % (1 << 16))
    await store.put("data/large", [memoryview(body)])
    assert store.stats[Operation.PUT].requests == 1
    # versitygw refuses before it has read the body and closes the connection, so its answer may be lost on the way.
    with pytest.raises((AlreadyExists, OutcomeUnknown)):
        await store.put("data/large", [b"y", memoryview(body)[1:]])
    assert await store.get("data/large") == body


async def test_a_range_is_exactly_what_was_asked(store: ObjectStore) -> None:
    body = bytes(range(256)) * 16
    await store.put("data/ranges", [body])
    for start, end in [(0, 1), (0, 4096), (1, 4095), (4095, 4096), (100, 612)]:
        assert await store.get_range("data/ranges", start, end) == body[start:end]
        assert bytes(await store.get_range_view("data/ranges", start, end)) == body[start:end]


@pytest.mark.parametrize(("start", "end"), [(90, 101), (99, 200), (100, 101), (150, 160)])
async def test_a_range_past_the_end_is_damage_not_a_shorter_answer(store: ObjectStore, start: int, end: int) -> None:
    await store.put("data/short", [b"x" * 100])
    with pytest.raises(Corrupt, match="data/short"):
        await store.get_range("data/short", start, end)


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 5)])
async def test_a_range_that_cannot_be_is_refused_before_any_request(store: ObjectStore, start: int, end: int) -> None:
    with pytest.raises(InvalidRequest):
        await store.get_range("data/any", start, end)
    assert store.stats.requests == 0


async def test_a_name_is_written_once(store: ObjectStore) -> None:
    await store.put("data/once", [b"first"])
    with pytest.raises(AlreadyExists):
        await store.put("data/once", [b"second"])
    assert await store.get("data/once") == b"first"


async def test_of_many_racing_writers_one_wins_and_its_body_stands(store: ObjectStore) -> None:
    bodies = [b"%03d" % number * 10_000 for number in range(16)]
    answers = await asyncio.gather(*(store.put("data/race", [body]) for body in bodies), return_exceptions=True)
    winners = [body for body, answer in zip(bodies, answers, strict=True) if answer is None]
    assert len(winners) == 1
    assert await store.get("data/race") == winners[0]


async def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    for call in (store.get("data/no"), store.get_range("data/no", 0, 1), store.head("data/no")):
        with pytest.raises(NotFound, match="data/no"):
            await call


async def test_a_folder_is_not_an_object(store: ObjectStore) -> None:
    await store.put("data/folder/one", [b"x"])
    with pytest.raises(NotFound):
        await store.get("data/folder")
    with pytest.raises(NotFound):
        await store.head("data/folder")


async def test_deletion_is_idempotent_and_takes_only_what_is_named(store: ObjectStore) -> None:
    for name in "abc":
        await store.put(f"data/{name}", [name.encode()])
    await store.delete(["data/a", "data/never-was", "data/c"])
    await store.delete(["data/a"])
    await store.delete([])
    assert await keys_below(store, "") == ["data/b"]


async def test_a_deleted_name_can_be_written_again(store: ObjectStore) -> None:
    await store.put("data/deep/er/one", [b"x"])
    await store.delete(["data/deep/er/one"])
    await store.put("data/deep/er/one", [b"y"])
    assert await store.get("data/deep/er/one") == b"y"


async def test_listing_is_in_key_order_across_folders(store: ObjectStore) -> None:
    keys = ["a-b/c", "a.b", "a/b-1/z", "a/b/c", "a/b/d", "a/b2", "a0"]
    keys += ["n/00000000000000000010", "n/00000000000000000009"]
    for key in keys:
        await store.put(key, [key.encode()])
    assert await keys_below(store, "") == sorted(keys)
    assert await keys_below(store, "a/") == ["a/b-1/z", "a/b/c", "a/b/d", "a/b2"]
    assert await keys_below(store, "a/b/") == ["a/b/c", "a/b/d"]
    assert await keys_below(store, "a/b") == ["a/b-1/z", "a/b/c", "a/b/d", "a/b2"]
    assert await keys_below(store, "n/0000000000000000001") == ["n/00000000000000000010"]
    assert await keys_below(store, "nothing/") == []
    assert [info.size_bytes async for info in store.list("a0")] == [2]


async def test_listing_and_deletion_go_beyond_one_page(store: ObjectStore) -> None:
    """More than 1,000 keys: a bucket answers in pages and refuses a larger deletion (F45)."""
    # Google and Azure take fewer keys in a deletion, and their servers here are slow: the last keys stay.
    smaller = {"gs": (1_100, 2, 201, 3), "az": (1_100, 2, 257, 2)}
    count, pages, deleted, deletions = smaller.get(store.url[:2], (2_100, 3, 2_100, 3))
    keys = [f"data/{number // 700:03}/{number:05}" for number in range(count)]
    for first in range(0, len(keys), 50):
        await asyncio.gather(*(store.put(key, [b"x"]) for key in keys[first : first + 50]))
    assert await keys_below(store, "") == keys
    assert store.stats[Operation.LIST].requests >= pages
    await store.delete(keys[:deleted])
    assert store.stats[Operation.DELETE].requests == deletions
    assert await keys_below(store, "") == keys[deleted:]


BAD_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.b", ".a", "a b", "a\nb", "ä", "a/b%2e"]
BAD_KEYS += ["x" * 201, "x/" * 450 + "x"]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_key_that_could_escape_or_mislead_is_refused(store: ObjectStore, key: str) -> None:
    calls = (store.put(key, [b"x"]), store.get(key), store.head(key), store.delete([key]), store.get_range(key, 0, 1))
    for call in calls:
        with pytest.raises(InvalidRequest):
            await call
    assert store.stats.requests == 0


async def test_every_call_is_counted(store: ObjectStore) -> None:
    await store.put("data/one", [b"12345"])
    await store.get("data/one")
    await store.get_range("data/one", 1, 3)
    await store.head("data/one")
    with pytest.raises(NotFound):
        await store.get("data/two")
    put, get, head = (store.stats[operation] for operation in (Operation.PUT, Operation.GET, Operation.HEAD))
    assert (put.requests, put.bytes) == (1, 5)
    assert (get.requests, get.bytes, dict(get.errors)) == (3, 7, {"not_found": 1})
    assert (head.requests, dict(head.errors)) == (1, {})
    assert get.latency.count == 3
    assert get.latency.total > 0
    assert get.in_flight == 0


async def test_the_counters_show_on_the_metrics_page(store: ObjectStore) -> None:
    registry = MetricRegistry()
    store.stats.export(registry)
    await store.put("data/one", [b"12345"])
    with pytest.raises(NotFound):
        await store.get("data/two")
    values = registry.values()
    assert values["stratalog_object_store_requests_total"][("put",)] == 1
    assert values["stratalog_object_store_bytes_total"][("put",)] == 5
    assert values["stratalog_object_store_latency_seconds"][("get",)] == 1
    assert values["stratalog_object_store_errors_total"] == {("get", "not_found"): 1}
    assert b"stratalog_object_store_requests_total" in await registry.page()


async def test_a_message_names_the_place_and_no_secret(store: ObjectStore) -> None:
    with pytest.raises(NotFound) as caught:
        await store.get("data/no")
    assert store.url in str(caught.value)
    assert "secret" not in str(caught.value) + store.url


async def test_a_cancelled_read_leaves_the_store_usable(store: ObjectStore) -> None:
    await store.put("data/one", [b"x" * 1_000_000])
    for _ in range(20):
        task = asyncio.ensure_future(store.get_range("data/one", 0, 1_000_000))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(await store.get("data/one")) == 1_000_000
    assert store.stats[Operation.GET].in_flight == 0
