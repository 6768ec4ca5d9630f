"""The embedded meta store keeps working on a disk that is full to the last byte (needs root, for a small file
system)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.machines.table.records import PutHeader, PutLock, TableHeader
from stratalog.model.errors import DiskFull
from stratalog.model.metadata import Lock
from stratalog_meta.stores.rocksdb import RocksStore
from stratalog_meta.stores.spare_room import SPARE_BYTES, SpareRoom
from support.small_disk import NoSmallDisk, fill, small_disk

HEADER = TableHeader("a cluster", 1, 1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with small_disk(tmp_path / "disk", 32 << 20) as folder:
            yield folder
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


async def write_until_full(store: RocksStore) -> int:
    """Returns: how many locks it has for certain."""
    for number in range(100_000):
        try:
            await store.write([[PutLock(Lock(f"lock {number}", "x" * 1000, 1, 1))]])
        except DiskFull:
            return number
    raise AssertionError("a full disk takes everything")


@pytest.mark.fault("metadata-store-room")
async def test_a_store_that_found_the_disk_full_continues_with_the_room_it_had_set_aside(disk: Path) -> None:
    directory = disk / "meta"
    spare = SpareRoom(directory)
    store = RocksStore(directory, spare=spare)
    await store.load()
    await store.write([[PutHeader(HEADER)]])
    assert (directory / "spare-room").stat().st_size == SPARE_BYTES and spare.why_short() is None
    fill(disk / "filler")
    count = await write_until_full(store)
    assert "free space" in (spare.why_short() or ""), "nobody else is to take what it gave up"
    await store.close()
    assert len(await store.load()) >= 1 + count
    for number in range(200):
        await store.write([[PutLock(Lock(f"later {number}", "y", 1, 1))]])
    assert spare.why_short() is not None
    (disk / "filler").unlink()
    assert spare.why_short() is None and (directory / "spare-room").stat().st_size == SPARE_BYTES
    await store.close()
    assert len(await RocksStore(directory).load()) >= 1 + count + 200


async def test_a_disk_that_is_small_from_the_beginning_does_without(tmp_path: Path, disk: Path) -> None:
    fill(disk / "filler", leave_bytes=3 * SPARE_BYTES // 2)
    store = RocksStore(disk / "meta", spare=(spare := SpareRoom(disk / "meta")))
    await store.load()
    await store.write([[PutHeader(HEADER)]])
    assert not (disk / "meta" / "spare-room").exists() and spare.why_short() is None
    await store.close()


@pytest.mark.fault("metadata-store-room-start")
@pytest.mark.parametrize("left_bytes", [0, 300_000, SPARE_BYTES - 100_000])
async def test_a_start_on_a_full_disk_has_the_room_that_an_earlier_start_set_aside(disk: Path, left_bytes: int) -> None:
    """More than once: a process that was killed on a full disk may be killed there again."""
    directory = disk / "meta"
    store = RocksStore(directory)
    await store.load()
    await store.write([[PutHeader(HEADER)]])
    for number in range(40):
        await store.write([[PutLock(Lock(f"lock {number}", os.urandom(50_000).hex(), 1, 1))]])
    await store.close()
    fill(disk / "filler", leave_bytes=left_bytes)
    for start in range(3):
        store = RocksStore(directory, spare=(spare := SpareRoom(directory)))
        assert len(await store.load()) == 1 + 40 + 100 * start
        assert "free space" in (spare.why_short() or ""), "segments are not to take what it uses"
        for number in range(100):
            await store.write([[PutLock(Lock(f"start {start}, {number}", "y", 1, 1))]])
        await store.close()
    (disk / "filler").unlink()
    store = RocksStore(directory, spare=(spare := SpareRoom(directory)))
    assert len(await store.load()) == 341 and spare.why_short() is None
    assert (directory / "spare-room").stat().st_size == SPARE_BYTES
    await store.close()
