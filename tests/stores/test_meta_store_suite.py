"""What every meta store promises. A new store joins by its name in `support.meta_worlds.STORE_KINDS`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from rocksdict import Options, Rdict

from stratalog.machines.table import records as table_records
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.errors import Corrupt, InvalidRequest, Unavailable
from stratalog.model.ids import MAX_OFFSET, SegmentKey, ShardKey
from stratalog.model.listeners import Listener
from stratalog.model.metadata import Lock, NodeInfo
from stratalog.model.mounts import Mount, MountedTopic, MountMode, MountState, OffsetRange, Volume
from stratalog.model.parts import PartList
from stratalog.model.producers import ProducerTally
from stratalog.model.rights import Operation, PatternType, Permission, Resource, ResourceType, Rule
from stratalog.model.scram import CredentialName, ScramCredential, ScramMechanism, UserCredential
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, SealRecord, Segment, SegmentState
from stratalog.model.topic import Topic
from stratalog_meta.stores.meta_store import MetaStore
from stratalog_meta.stores.rocksdb import RocksStore
from support.meta_worlds import STORE_KINDS, make_store, placed

TOPIC_ID = UUID("4b186ce9-ec7d-4a13-9932-91a9e41c24b5")
SHARD = ShardKey(TOPIC_ID, 9_999)
HEADER = table_records.TableHeader("cluster-1", 7, MAX_OFFSET - 1)
TOPIC = Topic("__consumer_offsets", TOPIC_ID, 10_000, 3, {"retention.ms": "-1", "note": "größer\n\x00"}, 5, True)
LISTENERS = (Listener("outside", "public.example", 30_001), Listener("v6", "fd00::1", 1))
NODE = table_records.NodeEntry(NodeInfo(2**31 - 1, "storage", "::1", 65_535, None, LISTENERS, False), 3)
LOCK = Lock("tier/ß/1", "node-1/4", 9, MAX_OFFSET, ("node-1/3", "node-ß/2"))
RESOURCE = Resource(ResourceType.TOPIC, "x" * 512, PatternType.PREFIXED)
RULE = Rule(RESOURCE, "User:ß\x00" + "y" * 500, "*", Operation.ALL, Permission.ALLOW)
GONE_RULE = replace(RULE, operation=Operation.READ)
KEYS = ScramCredential(b"\x00salt", bytes(range(32)), bytes(range(32, 64)), 4_096)
CREDENTIAL = UserCredential("ß\x00" + "u" * 500, ScramMechanism.SCRAM_SHA_256, KEYS)
GONE_CREDENTIAL = CredentialName(CREDENTIAL.user, ScramMechanism.SCRAM_SHA_512)
PURGED = table_records.PurgedTopic(UUID(int=99), 12)
SEAL = SealRecord(
    2**31 - 1,
    5,
    MAX_OFFSET,
    -1,
    -1,
    2**40,
    bytes(range(256)),
    ProducerTally(20_000, bytes(range(16)), MAX_OFFSET, MAX_OFFSET),
    (1, 2),
    99,
)
PARTS = tuple(RemotePart(f"bundles/{number}", number, 10, 5 + number, 6 + number) for number in range(300))
SEALED = Segment(
    SegmentKey(TOPIC_ID, 9_999, 2**31 - 1, 5),
    SegmentState.SEALED,
    None,
    (1, 2, 3),
    (1, 2),
    4,
    1,
    MAX_OFFSET,
    SEAL,
    (1, 2),
    RemoteCopy(RemoteState.PARTIAL, 305, PartList(PARTS), None, None, 3_000),
    None,
    8,
)
COMPLETE = replace(
    SEALED,
    key=SegmentKey(TOPIC_ID, 9_999, 3, 5),
    seal=replace(SEAL, epoch=3),
    remote=RemoteCopy(RemoteState.COMPLETE, MAX_OFFSET, (), "data/…/x.manifest", b"\x00\xff", 1),
    state=SegmentState.DELETED,
    deleted_ms=77,
)
ACTIVE = Segment(SegmentKey(TOPIC_ID, 0, 0, 0), SegmentState.ACTIVE, 1, (1,), (1,), 0, 1)


MOUNT = Mount(
    "tier/7", MountMode.VOLUME, 7, "disk-7", MountState.TAKING, 3, 88, "rack-ü", 1, 5, Volume("host", 9, "start")
)


RANGES = (OffsetRange(0, 5), OffsetRange(7, MAX_OFFSET))
HAND_MADE = Mount(
    "2013-01",
    MountMode.HAND_MADE,
    -1,
    "",
    MountState.SERVING,
    0,
    9,
    topics=(MountedTopic(TOPIC_ID, "orders", RANGES),),
    expires_ms=MAX_OFFSET,
)


def writes_of(segment: Segment) -> list[table_records.TableWrite]:
    writes: list[table_records.TableWrite] = [table_records.PutSegmentHead(segment)]
    if segment.seal is not None:
        writes.append(table_records.PutSeal(segment.key, segment.seal))
    writes.extend(table_records.PutPart(segment.key, part) for part in segment.remote.parts)
    return writes


EVERYTHING: list[table_records.TableWrite] = [
    table_records.PutTopic(TOPIC),
    table_records.PutShard(table_records.ShardRow(SHARD, MAX_OFFSET)),
    *writes_of(SEALED),
    *writes_of(COMPLETE),
    *writes_of(ACTIVE),
    table_records.PutNode(NODE),
    table_records.PutLock(LOCK),
    table_records.PutMount(MOUNT),
    table_records.PutMount(HAND_MADE),
    table_records.PutMount(replace(MOUNT, name="gone")),
    table_records.DropMount("gone"),
    table_records.PutRule(RULE),
    table_records.PutRule(GONE_RULE),
    table_records.DropRule(GONE_RULE),
    table_records.PutCredential(CREDENTIAL),
    table_records.DropCredential(GONE_CREDENTIAL),
    table_records.PutPurgedTopic(PURGED),
    table_records.PutPurgedTopic(table_records.PurgedTopic(UUID(int=98), 1)),
    table_records.DropPurgedTopic(UUID(int=98)),
    table_records.PutHeader(HEADER),
]


@pytest.fixture(params=STORE_KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetaStore]:
    made = make_store(placed(request, request.param), tmp_path)
    yield made
    await made.close()


async def reloaded(store: MetaStore) -> list[object]:
    await store.close()
    return list(await store.load())


# Every store ----------------------------------------------------------------------------------------------------
async def test_a_new_store_is_empty(store: MetaStore) -> None:
    assert await store.load() == []
    assert await reloaded(store) == []


async def test_what_was_written_is_loaded_and_the_header_comes_first(store: MetaStore) -> None:
    await store.load()
    await store.write([EVERYTHING])
    records = await reloaded(store)
    assert records[0] == HEADER
    expected = [
        HEADER,
        NODE,
        LOCK,
        MOUNT,
        HAND_MADE,
        RULE,
        CREDENTIAL,
        PURGED,
        TOPIC,
        table_records.ShardRow(SHARD, MAX_OFFSET),
        SEALED,
        COMPLETE,
        ACTIVE,
    ]
    assert sorted(map(repr, records)) == sorted(map(repr, expected))


async def test_the_last_write_of_a_record_stands(store: MetaStore) -> None:
    await store.load()
    await store.write(
        [
            [table_records.PutHeader(table_records.TableHeader("c", 1, 1)), table_records.PutLock(LOCK)],
            [table_records.PutHeader(table_records.TableHeader("c", 2, 1))],
        ]
    )
    await store.write([[table_records.PutLock(replace(LOCK, epoch=10))]])
    assert await reloaded(store) == [table_records.TableHeader("c", 2, 1), replace(LOCK, epoch=10)]


async def test_what_was_dropped_is_gone(store: MetaStore) -> None:
    await store.load()
    await store.write([EVERYTHING])
    drops: list[table_records.TableWrite] = [
        table_records.DropTopic(TOPIC_ID),
        table_records.DropPurgedTopic(PURGED.topic_id),
        table_records.DropShard(SHARD),
        table_records.DropMount(MOUNT.name),
        table_records.DropMount(HAND_MADE.name),
        table_records.DropRule(RULE),
        table_records.DropCredential(CREDENTIAL.name),
        table_records.DropSegment(ACTIVE.key),
        table_records.DropSegment(COMPLETE.key),
    ]
    drops += [table_records.DropPart(SEALED.key, part.base_offset) for part in PARTS[1:]]
    await store.write([drops])
    records = await reloaded(store)
    (segment,) = [record for record in records if isinstance(record, Segment)]
    assert segment.key == SEALED.key and tuple(segment.remote.parts) == PARTS[:1]
    assert [type(record) for record in records if not isinstance(record, Segment)] == [
        table_records.TableHeader,
        Lock,
        table_records.NodeEntry,
    ]


async def test_a_part_can_be_dropped_and_put_in_one_transaction(store: MetaStore) -> None:
    await store.load()
    merged = RemotePart("merged", 0, 20, 5, 7)
    await store.write([[table_records.PutHeader(HEADER), *writes_of(SEALED)]])
    await store.write(
        [
            [
                table_records.DropPart(SEALED.key, 5),
                table_records.DropPart(SEALED.key, 6),
                table_records.PutPart(SEALED.key, merged),
            ]
        ]
    )
    (segment,) = [record for record in await reloaded(store) if isinstance(record, Segment)]
    assert tuple(segment.remote.parts[:2]) == (merged, PARTS[2])


async def test_a_store_in_use_is_refused_to_a_second_service(store: MetaStore, tmp_path: Path) -> None:
    await store.load()
    second = RocksStore(tmp_path / "meta") if isinstance(store, RocksStore) else store
    with pytest.raises(Unavailable, match="in use"):
        await second.load()
    await store.close()


# The embedded store ---------------------------------------------------------------------------------------------
async def filled(directory: Path) -> Path:
    """A closed RocksDB store with a topic in it."""
    store = RocksStore(directory / "deep" / "meta")
    await store.load()
    topic = replace(TOPIC, shard_count=1)
    await store.write(
        [
            [
                table_records.PutHeader(HEADER),
                table_records.PutTopic(topic),
                table_records.PutShard(table_records.ShardRow(ACTIVE.key.shard_key, 0)),
            ]
        ]
    )
    await store.write([writes_of(ACTIVE)])
    await store.close()
    return directory / "deep" / "meta"


async def test_a_second_process_learns_who_is_in_the_way(tmp_path: Path) -> None:
    directory = await filled(tmp_path)
    program = (
        "import asyncio, sys; from pathlib import Path; from stratalog_meta.stores.rocksdb import RocksStore\n"
        "try: asyncio.run(RocksStore(Path(sys.argv[1])).load())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    store = RocksStore(directory)
    await store.load()
    done = subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Unavailable")
    assert str(directory) in done.stdout and "another process" in done.stdout
    await store.close()
    done = subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True, text=True, check=True)
    assert done.stdout == ""


KILLED_AFTER_THREE_WRITES = """
import asyncio, os, signal, sys
from pathlib import Path
from stratalog.machines.table.records import PutHeader, PutLock, TableHeader
from stratalog.model.metadata import Lock
from stratalog_meta.stores.rocksdb import RocksStore

async def main():
    store = RocksStore(Path(sys.argv[1]))
    await store.load()
    await store.write([[PutHeader(TableHeader("cluster-1", 1, 1))]])
    await store.write([[PutLock(Lock("second", "x" * 200, 1, 1))]])
    await store.write([[PutLock(Lock("third", "y" * 200, 1, 1))]])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def killed_log(tmp_path: Path) -> Path:
    """The write-ahead log that a killed process left behind: nothing of it is in a table file yet."""
    command = [sys.executable, "-c", KILLED_AFTER_THREE_WRITES, str(tmp_path / "meta")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (log,) = (path for path in (tmp_path / "meta").glob("*.log") if path.stat().st_size)
    return log


async def test_what_a_killed_process_wrote_is_there(killed_log: Path) -> None:
    store = RocksStore(killed_log.parent)
    assert [type(record) for record in await store.load()] == [table_records.TableHeader, Lock, Lock]
    await store.close()


@pytest.mark.fault("metadata-store-fails-damaged")
async def test_a_torn_tail_of_the_log_is_cut(killed_log: Path) -> None:
    """Its transaction was never answered: the tear is in the write that was under way."""
    killed_log.write_bytes(killed_log.read_bytes()[:-3])
    store = RocksStore(killed_log.parent)
    assert [record.name for record in await store.load() if isinstance(record, Lock)] == ["second"]
    await store.close()


@pytest.mark.fault("metadata-store-fails-damaged")
async def test_damage_in_the_middle_of_the_log_is_refused(killed_log: Path) -> None:
    """What comes after it was answered: cutting there would lose it in silence."""
    damaged = bytearray(killed_log.read_bytes())
    damaged[damaged.index(b"x" * 200)] ^= 1
    killed_log.write_bytes(damaged)
    with pytest.raises(Corrupt, match=str(killed_log.parent)):
        await RocksStore(killed_log.parent).load()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 5] ^= 1
    path.write_bytes(data)


@pytest.mark.fault("metadata-store-fails-damaged")
@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("*.sst", flip),
        ("*.sst", lambda path: os.truncate(path, path.stat().st_size // 2)),
        ("*.sst", Path.unlink),
        ("MANIFEST-*", flip),
        ("MANIFEST-*", Path.unlink),
        ("CURRENT", lambda path: path.write_bytes(b"")),
    ],
    ids=["table bit", "table cut", "table gone", "manifest bit", "manifest gone", "current empty"],
)
async def test_damage_below_the_log_is_refused_with_the_next_step(
    tmp_path: Path, pattern: str, damage: Callable[[Path], object]
) -> None:
    """Everything is read at the start, so damage shows there, in words, and not in the middle of the work."""
    directory = tmp_path / "meta"
    store = RocksStore(directory)
    await store.load()
    locks = [table_records.PutLock(Lock(f"lock {number}", f"{number * 7919:0200x}", 1, 1)) for number in range(500)]
    await store.write([[table_records.PutHeader(HEADER), *locks]])
    await store.close()
    (path,) = directory.glob(pattern)
    damage(path)
    for _ in range(2):
        with pytest.raises(Corrupt, match="from a copy") as refused:
            await RocksStore(directory).load()
        assert str(directory) in str(refused.value)


def ends_of_records(manifest: bytes) -> Iterator[int]:
    """A record is a checksum (4 bytes), a size (2, little-endian), a type (1), and its bytes."""
    at = 0
    while at < len(manifest):
        at += 7 + int.from_bytes(manifest[at + 4 : at + 6], "little")
        yield at


def files_of(directory: Path) -> set[str]:
    """What a store consists of; RocksDB writes its own log whenever it looks at one."""
    return {path.name for path in directory.iterdir() if not path.name.startswith("LOG")}


@pytest.mark.fault("metadata-store-emptied-cut")
async def test_a_manifest_cut_to_an_older_one_is_refused_where_it_shows_no_metadata(tmp_path: Path) -> None:
    """RocksDB takes it for whole, and would delete the tables that it does not name: only a check from outside
    notices."""
    whole, known_by = await filled(tmp_path), tmp_path / "node.json"
    (manifest,) = whole.glob("MANIFEST-*")
    told = []
    for end in ends_of_records(manifest.read_bytes()):
        directory = shutil.copytree(whole, tmp_path / f"cut at {end}")
        os.truncate(directory / manifest.name, end)
        before, store = files_of(directory), RocksStore(directory, known_by=known_by)
        try:
            assert HEADER in await store.load()
            await store.close()
        except Corrupt as error:
            told.append(str(error))
            assert str(directory) in told[-1] and "put the directory back from a copy" in told[-1]
            assert files_of(directory) == before
    assert any(f"no metadata in it, but {known_by} names a cluster" in words for words in told), told


async def test_an_emptied_directory_that_is_known_to_have_held_a_store_is_refused_and_stays_empty(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "meta"
    for made in (False, True):
        if made:
            directory.mkdir()
        with pytest.raises(
            Corrupt,
            match=r"node\.json names a cluster: put the directory back from a copy, start it by `stratalog node ",
        ):
            await RocksStore(directory, known_by=tmp_path / "node.json").load()
        assert directory.exists() == made and not (made and files_of(directory))


async def test_a_store_that_is_known_not_to_be_new_opens_when_it_is_there(tmp_path: Path) -> None:
    store = RocksStore(await filled(tmp_path), known_by=tmp_path / "node.json")
    assert HEADER in await store.load()
    assert HEADER in await reloaded(store)
    with pytest.raises(Unavailable, match="in use"):
        await RocksStore(tmp_path / "deep" / "meta", known_by=tmp_path / "node.json").load()
    await store.close()


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (b"a", json.dumps([2, "c", 0, 0]).encode(), InvalidRequest),
        (b"a", b"not json", Corrupt),
        (b"a", b"[1]", Corrupt),
        (b"a", b"7", Corrupt),
        (b"x?", b"[]", Corrupt),
        (b"v" + b"\x00" * 36 + b"\x01", b"[]", Corrupt),
        (b"v" + b"\x00" * 36 + b"\x00", b"[]", Corrupt),
        (b"v" + b"\x00" * 36 + b"\x00", b'["strange"]', Corrupt),
        (b"v" + TOPIC_ID.bytes + b"\x00" * 20 + b"\x07", b"[]", Corrupt),
        (b"s", b"[0]", Corrupt),
    ],
)
async def test_a_record_that_cannot_be_read_is_named(
    tmp_path: Path, key: bytes, value: bytes, kind: type[Exception]
) -> None:
    directory = await filled(tmp_path)
    db = Rdict(str(directory), Options(raw_mode=True))
    db[key] = value
    db.close()
    store = RocksStore(directory)
    with pytest.raises(kind, match=str(directory)):
        await store.load()
    with pytest.raises(kind):
        await store.load()


async def test_a_place_that_cannot_hold_a_store_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="metadata directory"):
        await RocksStore(tmp_path / "file" / "meta").load()
    with pytest.raises(Unavailable, match="not open"):
        await RocksStore(tmp_path / "meta").write([[table_records.PutHeader(HEADER)]])


async def test_a_loaded_store_is_a_true_table(tmp_path: Path) -> None:
    store = RocksStore(await filled(tmp_path))
    table = ShardTable.load(await store.load(), store.source)
    assert table is not None
    table.check_invariants()
    await store.close()
