"""Files of the checkpoint store are damaged: the node starts, and takes nothing for a checkpoint that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.model.errors import Unavailable
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.checkpoints import DAMAGED_SUFFIX, Checkpoints, flushed_ends

KEYS = [SegmentKey(UUID(int=number), 0, 0, 0) for number in range(60)]


def checkpoint(key: SegmentKey, end_offset: int) -> Checkpoint:
    return Checkpoint(
        key=key,
        position=100,
        next_offset=end_offset,
        first_timestamp_ms=-1,
        max_timestamp_ms=-1,
        points=IndexBuilder(0).freeze(),
        producers=(),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a store with tables, which was closed."""
    path = tmp_path / "checkpoints"
    for end_offset in (5, 9):
        store = Checkpoints(path)
        store.put(checkpoint(key, end_offset) for key in KEYS)
        store.close()
    return path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half] + bytes(path.stat().st_size - half))


def ends(store: Checkpoints) -> set[int]:
    return {one.next_offset for one in store.load_all().values()}


@pytest.mark.fault("checkpoint-store-damaged")
@pytest.mark.parametrize("damage", [flip, cut, zero, Path.unlink])
@pytest.mark.parametrize("files", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_a_damaged_store_is_set_aside_and_an_empty_one_takes_its_place(
    path: Path, files: str, damage: Callable[[Path], None]
) -> None:
    damaged = max(path.glob(files))
    damage(damaged)
    assert set(flushed_ends(path).values()) <= {5, 9}
    store = Checkpoints(path)
    assert store.load_all() == {} and not store.had(KEYS[0])
    store.put([checkpoint(KEYS[0], 12)])
    store.close()
    store = Checkpoints(path)
    assert ends(store) == {12} and store.had(KEYS[0])
    store.close()
    kept = path.with_name(path.name + DAMAGED_SUFFIX)
    assert any(kept.glob("*.sst")), "for a human"


@pytest.mark.fault("checkpoint-store-damaged")
def test_a_store_that_is_damaged_while_it_is_open_is_set_aside_by_the_next_read(path: Path) -> None:
    store = Checkpoints(path)
    for table in path.glob("*.sst"):
        table.write_bytes(bytes(table.stat().st_size))
    assert store.load(KEYS[7]) in (None, checkpoint(KEYS[7], 9)), "RocksDB may have it in memory"
    store.put([checkpoint(KEYS[7], 12)])
    found = store.load(KEYS[7])
    assert found is not None and found.next_offset == 12
    store.close()


def test_a_damaged_store_that_was_set_aside_before_makes_room_for_the_next(path: Path) -> None:
    for _ in range(2):
        (path / "CURRENT").write_bytes(b"nothing")
        Checkpoints(path).close()
    kept = path.with_name(path.name + DAMAGED_SUFFIX)
    assert (kept / "CURRENT").read_bytes() == b"nothing"


def test_a_store_that_another_process_has_open_stays_where_it_is(path: Path) -> None:
    store = Checkpoints(path)
    with pytest.raises(Unavailable, match="is another node using it"):
        Checkpoints(path)
    assert ends(store) == {9}
    store.close()
    assert not path.with_name(path.name + DAMAGED_SUFFIX).exists()


def test_damage_in_the_middle_of_the_names_is_not_mistaken_for_their_end(path: Path) -> None:
    """The iterators of rocksdict end there without a word."""
    for table in path.glob("*.sst"):
        flip(table)
    assert flushed_ends(path) == {}
    assert Checkpoints(path).load_all() == {}
    assert path.with_name(path.name + DAMAGED_SUFFIX).exists()
