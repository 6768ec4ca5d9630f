"""Uploads, freed copies, sweeps and replaced copies in the worlds of the product's own processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.machines.table.shard_table import ShardTable
from stratalog.machines.tiering.orphans import Verdict
from stratalog.machines.tiering.upload_events import PieceOutcome
from stratalog.model.metadata import ChangeSet
from stratalog_node.tier.sweep import orphan_sweep
from stratalog_node.tier.uploads.publisher import Publisher
from stratalog_sim.broken import Broken
from stratalog_sim.bugs.catalog import BUGS, find
from stratalog_sim.product.play import DIRECT, world_of
from stratalog_sim.product.world import Shape
from support import sim_bugs

SHAPES = (Shape(uploads=True, has_bucket=True), Shape(replicas=2, uploads=True), DIRECT)
QUICK = {
    "upload above HW": "only decided records are uploaded",
    "delete before commit": "the last copy is never deleted",
    "any holder uploads": "one uploader per commit",
    "uncommitted upload is swept": "nothing referenced is missing",
    "metadata not kept": "metadata survive a restart",
    "Direct acknowledged when written": "what is served of a Direct segment is in the object store",
    "Direct continued after a start": "what is served of a Direct segment is in the object store",
    "copy dropped before its replacement": "the last copy is never deleted",
}


@pytest.mark.parametrize("name", sim_bugs.names(QUICK))
def test_a_bug_of_uploads_or_copies_is_found(name: str) -> None:
    found = find(BUGS[name], range(60))
    assert found is not None, f"60 seeds do not find: {name}"
    assert QUICK[name] in found.promise


@pytest.mark.parametrize("shape", SHAPES, ids=("three copies", "two copies", "Direct"))
def test_uploads_that_are_interrupted_break_no_promise(shape: Shape) -> None:
    for seed in range(4):
        world = world_of(seed, shape)
        try:
            world.play()
        except AssertionError as failure:
            history = "\n".join(world.history(60))
            raise AssertionError(f"seed {seed} of {shape}: {failure}\n{history}") from failure


def test_in_a_world_of_uploads_segments_become_complete_local_copies_go_and_orphans_are_swept() -> None:
    world = world_of(2, SHAPES[0])
    put: list[str] = []
    swept: list[str] = []
    freed: list[str] = []
    world.bucket.on_put = both(world.bucket.on_put, lambda _, key: put.append(key))
    world.bucket.on_delete = both(world.bucket.on_delete, swept.append)
    world.kernel.on_remove = both(world.kernel.on_remove, lambda _, path, __: freed.append(path))
    world.play()
    assert sum(key.endswith(".manifest") for key in put) > 5
    assert any(key.endswith(".chunk") for key in swept)
    assert sum(path.endswith(".seg") for path in freed) > 5


def test_a_complete_copy_with_another_chunk_than_was_sealed_is_noticed() -> None:
    world = world_of(2, SHAPES[0])
    objects = world.bucket.objects

    def damage(_: str, key: str) -> None:
        content, at_ms = objects[key]
        if key.endswith(".chunk"):
            objects[key] = content[:-1] + bytes((content[-1] ^ 1,)), at_ms

    world.bucket.on_put = both(damage, world.bucket.on_put)
    with pytest.raises(Broken, match="a complete copy is the sealed segment"):
        world.play()


def test_an_object_of_a_complete_copy_that_is_deleted_is_noticed() -> None:
    world = world_of(2, SHAPES[0])

    def lose_a_chunk(table: ShardTable, _: ChangeSet) -> None:
        stored = [key for key in world.bucket.objects if world.stored.has(key) and key.endswith(".chunk")]
        for key in stored[:1]:
            world.bucket.on_delete(key)

    world.truth.after_publish.append(lose_a_chunk)
    with pytest.raises(Broken, match="nothing referenced is missing"):
        world.play()


def test_a_segment_that_is_never_completed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def publish(*_: object) -> tuple[PieceOutcome, ...]:
        return ()

    monkeypatch.setattr(Publisher, "publish", publish)
    with pytest.raises(Broken, match="what is sealed is stored"):
        world_of(0, SHAPES[0]).play()


def test_an_orphan_that_is_never_swept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_sweep, "classify_folder", lambda objects, *_: [Verdict.WAIT] * len(objects))
    with pytest.raises(Broken, match="orphans are swept"):
        world_of(2, SHAPES[0]).play()


def both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def call(*args: object) -> None:
        first(*args)
        second(*args)

    return call
