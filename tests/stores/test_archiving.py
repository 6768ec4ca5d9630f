"""`archive.after.ms`: the merging job puts old data in a class that must be restored first, once, checked, and under
new names; what is archived already stays as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.formats.bucket.object_names import is_packed
from stratalog.machines.tiering.retention import NO_LIMIT, is_to_archive
from stratalog.model.commands.table_commands import AlterTopic
from stratalog.model.errors import Archived
from stratalog.objects import open_store
from support.class_server import ClassServer, class_server_in_thread
from support.cold_data import FIRST_TIME_MS, batch_at
from support.compacting import CompactWorld, compact_world

DAY_MS = 86_400_000
PARTS = 30
SETTINGS = {"archive.after.ms": str(DAY_MS), "archive.storage.class": "DEEP_ARCHIVE"}
OLD_MS = FIRST_TIME_MS + DAY_MS + 10_000
"""When all that the test writes is old enough."""


@pytest.fixture
async def server() -> AsyncIterator[ClassServer]:
    with class_server_in_thread() as running:
        yield running


@pytest.fixture
async def place(server: ClassServer, tmp_path: Path) -> AsyncIterator[CompactWorld]:
    store = open_store(server.url())
    async with compact_world(store, server.url(), tmp_path, has_key_index=True) as made:
        await made.world.client.perform(AlterTopic(made.active.key.topic_id, SETTINGS))
        for number in range(2):
            base = 3 * PARTS * number
            await made.add([[batch_at(base + 3 * part, 3, epoch=number, value_bytes=400)] for part in range(PARTS)])
        yield made
    await store.close()


def classes(server: ClassServer, keys: set[str]) -> dict[str, set[str]]:
    """By the ends of names."""
    found: dict[str, set[str]] = {}
    for key in keys:
        found.setdefault(key.rpartition(".")[2], set()).add(server.objects[key].storage_class)
    return found


async def named(place: CompactWorld) -> set[str]:
    manifests = [segment.remote.manifest_key or "" for segment in await place.segments()]
    return {key for manifest in await place.manifests() for key in manifest.object_sizes} | set(manifests)


async def test_old_segments_go_to_the_archive_class_and_all_else_of_them_stays_readable(
    server: ClassServer, place: CompactWorld
) -> None:
    before, seals = await named(place), [one.seal for one in await place.segments()]
    dry = await place.compact(now_ms=OLD_MS, is_dry_run=True)
    assert dry.archived == 2 and await named(place) == before
    told = await place.compact(now_ms=OLD_MS)
    assert (told.archived, told.merged, told.left_archived, told.not_merged) == (2, 2, 0, [])
    now = await named(place)
    found = classes(server, now)
    assert found.pop("chunk") == {"DEEP_ARCHIVE"}
    assert {name for names in found.values() for name in names} == {"STANDARD"}
    assert [one.seal for one in await place.segments()] == seals
    assert await place.delete_what_metadata_do_not_name(), "as the nodes do after the grace"
    unchecked = await place.verify()
    assert (unchecked.archived, unchecked.findings, unchecked.unnamed_objects) == (2, [], 0)
    with pytest.raises(Archived):
        await place.store.get(next(key for key in now if key.endswith(".chunk")))
    server.end_restore()
    checked = await place.verify()
    assert (checked.archived, checked.findings) == (0, []), "digests, indexes, key indexes are those that were sealed"
    assert checked.batches == 2 * PARTS


async def test_young_segments_stay(server: ClassServer, place: CompactWorld) -> None:
    told = await place.compact(now_ms=FIRST_TIME_MS + DAY_MS)
    assert told.merged == 2 and told.archived == 0
    assert classes(server, await named(place))["chunk"] == {"STANDARD"}


@pytest.mark.fault("archive-job-again")
async def test_what_is_archived_stays_as_it_is_in_later_runs_restored_or_not(
    server: ClassServer, place: CompactWorld
) -> None:
    await place.compact(now_ms=OLD_MS)
    once, puts = await named(place), server.requests["PUT"]
    for _ in range(2):
        told = await place.compact(now_ms=OLD_MS)
        assert (told.left_archived, told.merged, told.not_merged) == (2, 0, [])
        server.end_restore()  # a restored copy can be read, and would be archived again
    await place.world.client.perform(AlterTopic(place.active.key.topic_id, {}))
    server.archive("DEEP_ARCHIVE", of=lambda key: key.endswith(".chunk"))
    told = await place.compact(now_ms=OLD_MS, is_packing=True)
    assert (told.left_archived, told.merged, told.not_merged) == (2, 0, []), "whoever archived it"
    assert await named(place) == once and server.requests["PUT"] == puts


@pytest.mark.fault("archive-job-again")
async def test_a_job_that_ends_between_its_puts_and_the_metadata_leaves_the_segment_and_the_next_one_archives_it(
    server: ClassServer, place: CompactWorld
) -> None:
    before = await named(place)

    def killed(work_on: Callable[[Any], Any], works: Iterable[Any]) -> Iterator[Any]:
        for work in works:
            assert not work_on(work).fault
        raise RuntimeError("killed")
        yield

    with pytest.raises(RuntimeError, match="killed"):
        await place.compact(killed, now_ms=OLD_MS)
    assert await named(place) == before
    assert "DEEP_ARCHIVE" in {one.storage_class for one in server.objects.values()}, "what was put is left to be swept"
    told = await place.compact(now_ms=OLD_MS)
    assert (told.archived, told.not_merged) == (2, [])
    assert classes(server, await named(place))["chunk"] == {"DEEP_ARCHIVE"}


async def test_packed_chunks_are_archived_packed(server: ClassServer, place: CompactWorld) -> None:
    await place.compact(is_packing=True, now_ms=FIRST_TIME_MS)
    told = await place.compact(now_ms=OLD_MS)
    assert told.archived == 2 and told.packed == told.objects_after
    chunks = {part.object_key for manifest in await place.manifests() for part in manifest.parts}
    assert all(map(is_packed, chunks)) and classes(server, chunks) == {"packed": {"DEEP_ARCHIVE"}}


@pytest.mark.fault("archive-job-again")
async def test_a_server_without_the_class_keeps_the_segment_as_it_was(server: ClassServer, place: CompactWorld) -> None:
    server.classes = ("STANDARD",)
    before = await named(place)
    told = await place.compact(now_ms=OLD_MS)
    assert told.archived == told.merged == 0
    assert len(told.not_merged) == 2 and all("InvalidStorageClass" in one.why for one in told.not_merged)
    assert await named(place) == before


async def test_age_is_that_of_the_newest_record_and_never_is_never(place: CompactWorld) -> None:
    seal = (await place.segments())[0].seal
    assert seal is not None
    newest = seal.max_timestamp_ms
    assert not is_to_archive(seal, 5, newest + 5) and is_to_archive(seal, 5, newest + 6)
    assert not is_to_archive(seal, NO_LIMIT, newest + 10**15)
