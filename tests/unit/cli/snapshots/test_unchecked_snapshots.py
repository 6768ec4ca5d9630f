"""A snapshot that was not checked to its end does not stay in the bucket, however the command ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog.model.cut import Cut
from stratalog.model.errors import AlreadyExists, OutcomeUnknown, Unavailable
from stratalog.objects import ObjectStore
from stratalog_cli.snapshots import snapshots

CLUSTER = "7b6dd8a2-0000-4000-8000-000000000001"


def cut(created_ms: int = 1) -> Cut:
    return Cut(CLUSTER, "month-end", created_ms, (), ())


def found(bucket: str) -> list[Cut]:
    async def every(store: ObjectStore) -> list[Cut]:
        return await snapshots.find(store, None)

    return snapshots.with_bucket(bucket, every)


def nothing() -> None:
    pass


def silent(_: str) -> None:
    pass


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    url = f"file://{tmp_path}"
    other = Cut(CLUSTER, "other", 1, (), ())
    snapshots._put_checked(url, other, nothing, silent)
    return url


def test_a_checked_snapshot_stays(bucket: str) -> None:
    snapshots._put_checked(bucket, cut(), nothing, silent)
    assert [one.name for one in found(bucket)] == ["month-end", "other"]


@pytest.mark.parametrize("end", [KeyboardInterrupt(), Unavailable("a segment was deleted"), OSError("no answer")])
def test_a_snapshot_whose_check_does_not_end_well_is_deleted(bucket: str, end: BaseException) -> None:
    def ends() -> None:
        raise end

    with pytest.raises(type(end)):
        snapshots._put_checked(bucket, cut(), ends, silent)
    assert [one.name for one in found(bucket)] == ["other"]


def test_a_snapshot_is_deleted_where_the_answer_to_its_put_was_lost(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = snapshots._put

    async def lost(store: ObjectStore, one: Cut) -> None:
        await put(store, one)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(snapshots, "_put", lost)
    with pytest.raises(OutcomeUnknown):
        snapshots._put_checked(bucket, cut(), nothing, silent)
    assert [one.name for one in found(bucket)] == ["other"]


def test_an_earlier_snapshot_of_the_name_stays(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots._put_checked(bucket, cut(1), nothing, silent)
    with pytest.raises(AlreadyExists):
        snapshots._put_checked(bucket, cut(2), nothing, silent)

    async def unknown(store: ObjectStore, one: Cut) -> None:
        await asyncio.sleep(0)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(snapshots, "_put", unknown)
    with pytest.raises(OutcomeUnknown):
        snapshots._put_checked(bucket, cut(2), nothing, silent)
    assert [one.created_ms for one in found(bucket) if one.name == "month-end"] == [1]


def test_what_could_not_be_deleted_is_told(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(store: ObjectStore, cluster_id: str, name: str) -> None:
        raise Unavailable("the bucket is away")

    def ends() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshots, "_delete", away)
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        snapshots._put_checked(bucket, cut(), ends, told.append)
    assert len(told) == 1 and "'month-end' was not checked" in told[0]
