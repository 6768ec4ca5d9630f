"""The directory store by itself: what a crash, a full disk and other programs' files may do to it (F50, F52)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.model.errors import InvalidRequest, NotFound, Unavailable
from stratalog.objects import ObjectStore, Operation, StoreSettings, open_store
from support.small_disk import NoSmallDisk, small_disk
from support.waiting import eventually

Opener = Callable[..., ObjectStore]

WRITER = """
import asyncio, sys
from stratalog.objects import open_store

async def write(worker):
    store = open_store(sys.argv[1])
    for number in range(1_000_000):
        body = bytes([number % 251]) * (1 + number * 7919 % 400_000)
        await store.put(f"w{worker}/{number:08}.{len(body)}", [body])

async def main():
    await asyncio.gather(*(write(worker) for worker in range(4)))

asyncio.run(main())
"""


@pytest.mark.fault("torn-write-directory-store")
async def test_a_killed_writer_never_leaves_a_torn_object_under_a_name(tmp_path: Path, opener: Opener) -> None:
    """Whatever is listed is whole: its name says how long it must be (F50)."""
    store = opener(str(tmp_path / "store"))
    for round_number in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "store" / f"r{round_number}")])
        try:
            await eventually(lambda n=round_number: _count(tmp_path / "store" / f"r{n}") > 20 * (n + 1), timeout=60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    infos = [info async for info in store.list("")]
    assert len(infos) > 60
    for info in infos:
        name, _, length = info.key.rpartition(".")
        body = await store.get(info.key)
        assert len(body) == info.size_bytes == int(length)
        assert body == bytes([int(name.rpartition("/")[2]) % 251]) * len(body)


def _count(folder: Path) -> int:
    return sum(1 for path in folder.glob("w*/*"))


async def test_what_dead_writers_left_is_swept_and_never_listed(tmp_path: Path, opener: Opener) -> None:
    incoming = tmp_path / ".incoming"
    incoming.mkdir()
    (incoming / "old").write_bytes(b"half")
    (incoming / "new").write_bytes(b"half")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(incoming / "old", (two_days_ago, two_days_ago))
    store = opener(str(tmp_path))
    await store.put("a", [b"x"])
    assert [info.key async for info in store.list("")] == ["a"]
    assert [path.name for path in incoming.iterdir()] == ["new"], "another process may still be writing the young one"


async def test_what_cannot_be_swept_keeps_no_one_from_putting(tmp_path: Path, opener: Opener) -> None:
    """A folder stands for what belongs to another user, or is held open over NFS."""
    (tmp_path / ".incoming" / "odd").mkdir(parents=True)
    (tmp_path / ".incoming" / "old").write_bytes(b"half")
    for name in ("odd", "old"):
        os.utime(tmp_path / ".incoming" / name, (0, 0))
    store = opener(str(tmp_path))
    await store.put("a", [b"x"])
    assert [path.name for path in (tmp_path / ".incoming").iterdir()] == ["odd"]


async def test_a_deletion_takes_empty_folders_and_no_others(tmp_path: Path, opener: Opener) -> None:
    store = opener(str(tmp_path))
    await store.put("a/b/c/one", [b"x"])
    await store.put("a/two", [b"x"])
    await store.delete(["a/b/c/one"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["two"]
    await store.delete(["a/two"])
    assert not (tmp_path / "a").exists()
    assert tmp_path.exists()


async def test_puts_and_deletions_of_one_folder_do_not_harm_each_other(tmp_path: Path, opener: Opener) -> None:
    store = opener(str(tmp_path))

    async def churn(worker: int) -> None:
        for number in range(40):
            await store.put(f"a/b/{worker}-{number}", [b"x"])
            await store.delete([f"a/b/{worker}-{number}"])

    await asyncio.gather(*(churn(worker) for worker in range(4)))
    assert [info.key async for info in store.list("")] == []


async def test_a_key_below_another_key_is_refused(tmp_path: Path, opener: Opener) -> None:
    store = opener(str(tmp_path))
    await store.put("a", [b"x"])
    with pytest.raises(InvalidRequest, match="below another key"):
        await store.put("a/b", [b"x"])
    with pytest.raises(NotFound):
        await store.get("a/b")
    await store.delete(["a/b"])


async def test_files_of_others_are_not_listed_unless_their_names_are_keys(tmp_path: Path, opener: Opener) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "x").write_bytes(b"x")
    (tmp_path / ".hidden").write_bytes(b"x")
    (tmp_path / "a b").write_bytes(b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert [info.key async for info in opener(str(tmp_path)).list("")] == ["plain"]


@pytest.mark.fault("directory-bucket-unmounted-node")
async def test_a_directory_that_was_removed_is_made_again(tmp_path: Path, opener: Opener) -> None:
    store = opener(str(tmp_path / "store"))
    await store.put("a", [b"x"])
    (tmp_path / "store" / "a").unlink()
    (tmp_path / "store" / ".incoming").rmdir()
    (tmp_path / "store").rmdir()
    assert [info.key async for info in store.list("")] == []
    await store.put("a", [b"y"])
    assert await store.get("a") == b"y"


@pytest.mark.fault("directory-bucket-unmounted-node")
async def test_where_nothing_is_mounted_any_more_nothing_is_put_and_nothing_missed(
    tmp_path: Path, opener: Opener
) -> None:
    """Objects put there would be hidden once the file system is back. A link replaces the mount in this test."""
    place = tmp_path / "place"
    store = opener(str(place / "of" / "the" / "store"))
    try:
        with small_disk(tmp_path / "disk", 4 << 20) as disk:
            place.symlink_to(disk)
            await store.put("a/first", [b"x"])
            place.unlink()
            place.mkdir()
            for call in (
                store.put("a/second", [b"y"]),
                store.get("a/first"),
                store.get_range("a/first", 0, 1),
                store.head("a/first"),
                store.delete(["a/first"]),
                _listed(store),
            ):
                with pytest.raises(Unavailable, match="another file system than before: is it mounted"):
                    await call
            place.rmdir()  # it is empty
            place.symlink_to(disk)
            await store.put("a/second", [b"y"])
            assert [info.key async for info in store.list("")] == ["a/first", "a/second"]
            await store.close()
    except NoSmallDisk as error:
        pytest.skip(str(error))


@pytest.mark.fault("directory-bucket-unmounted-node")
async def test_what_was_put_before_the_file_system_was_mounted_does_not_count_as_it(
    tmp_path: Path, opener: Opener
) -> None:
    """As by a node that comes up before its mount: the folder for what is half written is in both places."""
    place, below = tmp_path / "place", tmp_path / "below"
    store = opener(str(place / "store"))
    try:
        with small_disk(tmp_path / "disk", 4 << 20) as disk:
            await opener(str(disk / "store")).put("a/first", [b"x"])
            await store.put("early", [b"x"])
            place.rename(below)
            place.symlink_to(disk)
            await store.put("a/second", [b"y"])
            place.unlink()
            below.rename(place)
            for call in (store.put("a/third", [b"z"]), store.get("a/first"), _listed(store)):
                with pytest.raises(Unavailable, match="another file system than before: is it mounted"):
                    await call
            place.rename(below)
            place.symlink_to(disk)
            await store.put("a/third", [b"z"])
            assert [info.key async for info in store.list("")] == ["a/first", "a/second", "a/third"]
            await store.close()
    except NoSmallDisk as error:
        pytest.skip(str(error))


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.put("a", [b"x"])


async def test_a_put_that_still_waits_when_its_store_is_closed_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had ended as if its caller had been cancelled, and a group of tasks went on as if it had been put."""
    store = open_store(str(tmp_path), StoreSettings(threads=1))
    is_back = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: is_back.wait())
    try:
        async with asyncio.TaskGroup() as group:
            for key in ("begun", "waiting"):
                group.create_task(store.put(key, [key.encode()]))
            given_up = asyncio.ensure_future(store.put("given-up", [b"x"]))
            await eventually(lambda: store.stats[Operation.PUT].in_flight == 3)
            given_up.cancel()
            await asyncio.wait([given_up])
            await store.close()
            is_back.set()
    finally:
        is_back.set()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == {
        "begun": b"begun",
        "waiting": b"waiting",
    }
    assert given_up.cancelled()


async def test_a_place_that_cannot_be_a_directory_is_reported(tmp_path: Path, opener: Opener) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises((InvalidRequest, Unavailable), match="file"):
        await opener(str(tmp_path / "file" / "store")).probe()


async def test_a_file_system_that_hangs_ends_in_the_deadline(tmp_path: Path, opener: Opener) -> None:
    """A FIFO without a writer acts as a dead mount: the read's thread hangs, the caller does not."""
    os.mkfifo(tmp_path / "hung")
    writer = os.open(tmp_path / "hung", os.O_RDWR | os.O_NONBLOCK)
    settings = StoreSettings(attempt_timeout_ms=100, deadline_ms=200, attempts=1, threads=1)
    store = opener(str(tmp_path), settings)
    try:
        with pytest.raises(Unavailable, match="no answer"):
            await store.get("hung")
        with pytest.raises(Unavailable, match="no answer"):
            await store.head("hung")
    finally:
        # Lets the hung thread go, so that the test process can end: its read meets the end, or its open no file.
        (tmp_path / "hung").unlink()
        os.close(writer)


@pytest.mark.fault("directory-store-disk-hangs")
async def test_writes_that_hang_hold_up_no_read(
    tmp_path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not come back from its flushes: what lies there is still read."""
    settings = StoreSettings()
    store = opener(str(tmp_path / "store"), settings)
    await store.put("old/a", [b"there"])
    is_back = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda _: is_back.wait())
    puts = [asyncio.ensure_future(store.put(f"new/{number}", [b"x"])) for number in range(3 * settings.threads)]
    try:
        await eventually(lambda: store.stats[Operation.PUT].in_flight == len(puts))
        assert await store.get_range("old/a", 0, 5) == b"there"
        assert (await store.head("old/a")).size_bytes == 5
    finally:
        is_back.set()
        await asyncio.gather(*puts)


@pytest.mark.fault("directory-store-disk-hangs")
async def test_reads_that_hang_hold_up_no_write(tmp_path: Path, opener: Opener) -> None:
    """A pipe under an object's name answers no read until something is written into it."""
    settings = StoreSettings()
    store = opener(str(tmp_path / "store"), settings)
    await store.put("a/first", [b"x"])
    pipe = tmp_path / "store" / "a" / "pipe"
    os.mkfifo(pipe)
    reads = [asyncio.ensure_future(store.get("a/pipe")) for _ in range(settings.threads)]
    try:
        await eventually(lambda: store.stats[Operation.GET].in_flight == len(reads))
        await store.put("a/second", [b"y"])
        assert "a/second" in [info.key async for info in store.list("a/")]
    finally:
        os.close(os.open(pipe, os.O_WRONLY))
        assert await asyncio.gather(*reads) == [b""] * len(reads)


async def test_a_bucket_that_is_a_file_is_named_as_one(tmp_path: Path) -> None:
    """Listed it looked like a bucket that holds nothing."""
    (tmp_path / "file").write_bytes(b"x")
    store = open_store(f"file://{tmp_path}/file")
    for call in (store.put("a", [b"x"]), _listed(store)):
        with pytest.raises(InvalidRequest, match="file is a file, not a directory: name another"):
            await call
    await store.close()


async def _listed(store: ObjectStore) -> None:
    async for _ in store.list(""):
        pass


async def test_a_file_system_that_keeps_no_files_is_reported(opener: Opener) -> None:
    with pytest.raises(Unavailable, match="files cannot be kept there, name a directory"):
        await opener("/proc/stratalog").put("a", [b"x"])


async def test_other_users_of_the_machine_read_nothing_of_a_new_bucket(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "bucket"))
    await store.put("topic/object", [b"a record"])
    assert (tmp_path / "bucket").stat().st_mode & 0o007 == 0
