"""Listing the classes of a bucket, and asking for restores, against a server that knows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.model.errors import StratalogError, Unavailable
from stratalog.objects import BucketClasses, ClassedObject, Restore, RestoreTier, open_classes
from support.class_server import ClassServer, Stored, class_server_in_thread


@pytest.fixture
def server() -> Iterator[ClassServer]:
    with class_server_in_thread() as running:
        running.objects = {f"p/data/{number}": Stored(b"x" * number) for number in range(1, 4)}
        yield running


@pytest.fixture
def classes(server: ClassServer) -> Iterator[BucketClasses]:
    opened = open_classes(server.url("p"), environment={})
    assert opened is not None
    with opened:
        yield opened


def test_a_listing_says_class_and_restore_of_each_object(server: ClassServer, classes: BucketClasses) -> None:
    assert [one.is_archived for one in classes.list("data/")] == [False] * 3
    server.archive("DEEP_ARCHIVE", of=lambda key: key != "p/data/1")
    assert list(classes.list("data/")) == [
        ClassedObject("data/1", 1, "STANDARD"),
        ClassedObject("data/2", 2, "DEEP_ARCHIVE"),
        ClassedObject("data/3", 3, "DEEP_ARCHIVE"),
    ]
    classes.restore("data/2", 3, RestoreTier.BULK)
    assert [one.restore for one in classes.list("data/")] == [Restore.NONE, Restore.UNDER_WAY, Restore.NONE]
    server.end_restore()
    assert [one.restore for one in classes.list("data/")] == [Restore.NONE, Restore.DONE, Restore.DONE]
    assert list(classes.list("other/")) == []


def test_more_objects_than_a_page_has_are_listed(server: ClassServer, classes: BucketClasses) -> None:
    server.objects = {f"p/data/{number:05d}": Stored(b"") for number in range(1_001)}
    assert [one.key for one in classes.list("data/")] == [f"data/{number:05d}" for number in range(1_001)]


@pytest.mark.fault("restore-asked-twice")
def test_a_restore_that_is_asked_for_again_is_one_restore(server: ClassServer, classes: BucketClasses) -> None:
    """After a lost answer, or by two people."""
    server.archive()
    for _ in range(2):
        classes.restore("data/2", 3, RestoreTier.STANDARD)
    assert server.restores == [("p/data/2", 3, "Standard")]
    server.end_restore()
    classes.restore("data/2", 9, RestoreTier.STANDARD)
    assert server.restores[1:] == [("p/data/2", 9, "Standard")], "the copy stays longer"


def test_what_the_server_refuses_is_an_error_with_its_words(server: ClassServer, classes: BucketClasses) -> None:
    with pytest.raises(StratalogError, match=r"data/1: no restore: 403 InvalidObjectState"):
        classes.restore("data/1", 3, RestoreTier.STANDARD)
    server.archive("DEEP_ARCHIVE")
    with pytest.raises(StratalogError, match=r"data/1: no restore: 400 InvalidArgument"):
        classes.restore("data/1", 3, RestoreTier.EXPEDITED)


def test_a_bucket_that_is_not_there_is_an_error(server: ClassServer) -> None:
    opened = open_classes(server.url().replace("s3://classes", "s3://none"), environment={})
    assert opened is not None
    with opened, pytest.raises(Unavailable, match=r"there is no bucket none at http.*: create it, or correct"):
        list(opened.list("data/"))


def test_a_directory_has_no_classes(tmp_path: Path) -> None:
    assert open_classes(str(tmp_path)) is None


def test_missing_credentials_are_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    opened = open_classes("s3://nowhere", environment={})
    assert opened is not None
    with opened, pytest.raises(Unavailable, match="there are no credentials for this bucket: set AWS_ACCESS_KEY_ID"):
        list(opened.list("data/"))
