"""Storage classes: objects are put in the class that is asked for, and one that must be restored before it is read is a
typed error that says what to do."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratalog.model.errors import Archived, InvalidRequest, Unavailable
from stratalog.objects import FailureKind, ObjectStore, Operation, open_store
from stratalog.objects.archived import ArchiveState, archived, state_of
from support.class_server import ClassServer, class_server

BODY = b"0123456789"


@pytest.fixture
async def server() -> AsyncIterator[ClassServer]:
    async with class_server() as running:
        yield running


@pytest.fixture
async def store(server: ClassServer) -> AsyncIterator[ObjectStore]:
    opened = open_store(server.url())
    await opened.put("a/one", [BODY])
    yield opened
    await opened.close()


async def refused(store: ObjectStore, *, is_range: bool = False) -> Archived:
    with pytest.raises(Unavailable) as raised:
        await (store.get_range("a/one", 2, 5) if is_range else store.get("a/one"))
    assert isinstance(raised.value, Archived)
    return raised.value


@pytest.mark.fault("lifecycle-rule-moved-object")
@pytest.mark.parametrize("is_range", [False, True])
@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
async def test_a_read_says_the_class_and_whether_a_restore_is_under_way(
    storage_class: str, is_range: bool, server: ClassServer, store: ObjectStore
) -> None:
    server.archive(storage_class)
    error = await refused(store, is_range=is_range)
    assert (error.storage_class, error.is_restoring) == (storage_class, False)
    assert f"archive class {storage_class}, and must be restored" in str(error) and "credentials" not in str(error)
    server.begin_restore()
    error = await refused(store, is_range=is_range)
    assert (error.storage_class, error.is_restoring) == (storage_class, True)
    assert "a restore is under way" in str(error) and "topics restore" not in str(error)
    assert store.stats[Operation.GET].errors == {FailureKind.ARCHIVED: 2} and store.stats[Operation.GET].retries == 0
    server.end_restore()
    assert await store.get("a/one") == BODY and await store.get_range("a/one", 2, 5) == BODY[2:5]


@pytest.mark.fault("lifecycle-rule-moved-object")
async def test_a_server_that_says_no_more_leaves_the_restore_unknown(server: ClassServer, store: ObjectStore) -> None:
    server.archive()
    server.hides_state = True
    error = await refused(store)
    assert (error.storage_class, error.is_restoring) == ("", None)
    assert "whether a restore is under way is not known" in str(error)


async def test_all_but_reads_work_for_an_archived_object(server: ClassServer, store: ObjectStore) -> None:
    server.archive()
    assert [one.key async for one in store.list("a/")] == ["a/one"]
    assert (await store.head("a/one")).size_bytes == len(BODY)
    await store.delete(["a/one"])
    assert server.objects == {}


@pytest.mark.parametrize("storage_class", ["STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"])
async def test_classes_that_are_read_at_once_are_read(
    storage_class: str, server: ClassServer, store: ObjectStore
) -> None:
    server.archive(storage_class)
    assert await store.get("a/one") == BODY
    assert server.requests["HEAD"] == 0, "only a refusal is asked about"


async def test_an_object_is_put_in_the_class_that_is_asked_for(server: ClassServer, store: ObjectStore) -> None:
    await store.put("a/two", [BODY], "GLACIER_IR")
    assert {key: one.storage_class for key, one in server.objects.items()} == {
        "a/one": "STANDARD",
        "a/two": "GLACIER_IR",
    }
    assert await store.get("a/two") == BODY
    server.classes = ("STANDARD",)
    with pytest.raises(
        InvalidRequest, match=r"InvalidStorageClass.*set remote\.storage\.class to a class that this server"
    ):
        await store.put("a/three", [BODY], "STANDARD_IA")
    assert store.stats[Operation.PUT].errors == {FailureKind.REJECTED: 1}


@pytest.mark.parametrize("url", ["memory:", "{}"])
async def test_a_store_without_classes_ignores_them(url: str, tmp_path: Path) -> None:
    opened = open_store(url.format(tmp_path / "store"))
    await opened.put("a/one", [BODY], "GLACIER_IR")
    assert await opened.get("a/one") == BODY
    await opened.close()


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ({}, ArchiveState("", False)),
        ({"x-amz-storage-class": "GLACIER"}, ArchiveState("GLACIER", False)),
        ({"x-amz-restore": 'ongoing-request="true"'}, ArchiveState("", True)),
        ({"x-amz-restore": 'ongoing-request="false", expiry-date="Fri, 21 Dec 2035"'}, ArchiveState("", False)),
        ({"x-amz-restore": "something else"}, ArchiveState("", None)),
        ({"x-amz-storage-class": "a class\nof mine"}, ArchiveState("", False)),
    ],
)
def test_headers_are_read_as_s3_writes_them(headers: dict[str, str], state: ArchiveState) -> None:
    assert state_of(headers) == state


def test_the_error_crosses_processes_whole() -> None:
    """As the error of a task in Spark does."""
    error = archived("get s3://b/k", "the store answered 403", ArchiveState("GLACIER", True))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.storage_class, again.is_restoring) == (str(error), "GLACIER", True)
