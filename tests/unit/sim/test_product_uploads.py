"""Uploads, freed copies, sweeps and replaced copies in the worlds of the product's own processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog_sim.product.play import world_of
from stratalog_sim.product.world import Shape
from stratalog_sim.product_bugs.catalog import PRODUCT_BUGS, find

SHAPES = (Shape(uploads=True, has_bucket=True), Shape(replicas=2, uploads=True))
BUGS = {
    "upload above HW": "only decided records are uploaded",
    "delete before commit": "the last copy is never deleted",
    "any holder uploads": "one uploader per commit",
    "uncommitted upload is swept": "nothing referenced is missing",
    "metadata not kept": "metadata survive a restart",
    "copy dropped before its replacement": "the last copy is never deleted",
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_of_uploads_or_copies_is_found(name: str) -> None:
    found = find(PRODUCT_BUGS[name], range(10))
    assert found is not None, f"10 seeds do not find: {name}"
    assert BUGS[name] in found.promise


@pytest.mark.parametrize("shape", SHAPES, ids=("three copies", "two copies"))
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


def both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def call(*args: object) -> None:
        first(*args)
        second(*args)

    return call
