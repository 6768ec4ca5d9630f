"""Disks in the worlds of the product's own processes: what power cuts take, and what outlives a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from stratalog.formats.batches.record_batch import scan_valid_prefix
from stratalog.formats.batches.records import NEXT_OFFSET, Record, encode_batch
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.ids import SegmentKey
from stratalog_node.disk import ends_in_memory
from stratalog_node.disk.ends_in_memory import EndsInMemory
from stratalog_sim.broken import Broken
from stratalog_sim.bugs.catalog import BUGS, find
from stratalog_sim.product.copy_ends import CopyEnds, end_of
from stratalog_sim.product.directories import BadDirectories
from stratalog_sim.product.faults import end_faults
from stratalog_sim.product.files import SECTOR_BYTES, FileSystem, Inode
from stratalog_sim.product.kernel import Kernel
from stratalog_sim.product.loop import VirtualLoop
from stratalog_sim.product.losses import Losses
from stratalog_sim.product.machine import MEMORY, PROCESS, Machine, Process
from stratalog_sim.product.play import world_of
from stratalog_sim.product.truth import LAYOUT, Truth
from stratalog_sim.product.world import ProductWorld, Shape
from support import sim_bugs

KEY = SegmentKey(UUID(int=1), 0, 1, 40)
DIRECTORY_BUGS = (
    "damage taken for a torn tail",
    "shorter file taken for whole",
    "older state accepted",
    "copy replaces a living node",
)
SEEDS = range(80)
"""At least one of them finds each bug; most find it early."""
ONE_NODE = Shape(nodes=1, replicas=1, is_fsync=False)
LOSSY_SEED = 3
"""A power cut of the only node takes records that were acknowledged."""


def test_what_was_not_flushed_is_owed_no_more_once_a_power_cut_took_it() -> None:
    world = world_of(LOSSY_SEED, ONE_NODE)
    world.play()
    assert world.truth.losses.count
    assert any(world.truth.losses.values.values()), "no client had learned of what was lost"


def test_a_file_whose_name_a_power_cut_took_is_owed_no_more() -> None:
    """Its data is still on the disk."""
    world = world_of(1475, ONE_NODE)
    world.play()
    assert world.truth.losses.count


def test_a_loss_that_no_power_cut_explains_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Losses, "lose", lambda *_: None)
    world = world_of(LOSSY_SEED, ONE_NODE)
    with pytest.raises(Broken):
        world.play()


def test_a_power_cut_does_not_excuse_what_was_gone_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    power_goes = Truth.power_goes

    def lose_and_look(truth: Truth, node_id: int, table: ShardTable | None) -> None:
        for inode in _segment_files(truth.machines[node_id].files.find(str(LAYOUT.segments))):
            inode.cut(SEGMENT_HEADER_BYTES, is_zeroed=False)
        power_goes(truth, node_id, table)

    monkeypatch.setattr(Truth, "power_goes", lose_and_look)
    with pytest.raises(Broken, match="before node 1 loses its power"):
        world_of(LOSSY_SEED, ONE_NODE).play()


def _segment_files(directory: Inode) -> Iterator[Inode]:
    for name, inode in directory.entries.items():
        if inode.is_directory:
            yield from _segment_files(inode)
        elif name.endswith(".seg"):
            yield inode


@pytest.mark.parametrize("is_memory_gone", [False, True])
def test_a_file_system_is_set_back_within_a_life_only_while_the_memory_can_show_it(*, is_memory_gone: bool) -> None:
    """Damage that shows without the memory may take that first."""
    shown = set()
    for seed in range(20):
        world = ProductWorld(seed, Shape(directories=True))
        machine, bad = world.hosts[1].machine, BadDirectories(world)
        with world.kernel.installed(seed):
            token = PROCESS.set(Process(machine))
            try:
                LAYOUT.root.mkdir(parents=True)
                LAYOUT.node_file.write_bytes(b'{"storage_id": "s"}')
                Path(MEMORY, "stratalog-s").write_bytes(b"ends")
            finally:
                PROCESS.reset(token)
            bad.back_up(1)
            if is_memory_gone:
                machine.forget_memory()
            assert bad.put_back(1, 0.0)
        shown.add("as a file system" in world.history()[-1])
    assert shown == ({False} if is_memory_gone else {False, True})


def test_a_power_cut_excuses_nothing_where_all_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world takes a topic for one that is flushed, though it is not."""
    create = ProductWorld._create_topic

    async def create_other(self: ProductWorld) -> None:
        await create(self)
        self.is_fsync = self.truth.is_fsync = True

    monkeypatch.setattr(ProductWorld, "_create_topic", create_other)
    with pytest.raises(Broken, match=r"flushed data survives a power cut|HW is within"):
        world_of(LOSSY_SEED, ONE_NODE).play()


def test_a_node_whose_full_disk_does_not_take_the_note_of_its_stop_starts_again() -> None:
    world = ProductWorld(0, replace(ONE_NODE, has_groups=False))

    async def fill_and_stop(begun: ProductWorld) -> None:
        for producer in begun.producers:
            producer.is_over = True
        await asyncio.sleep(2.0)  # all is flushed
        begun.hosts[1].machine.files.is_full = True
        begun.stop(1, down_s=0.2)
        await asyncio.sleep(1.0)
        end_faults(begun)

    world.cause_faults = fill_and_stop
    world.play()
    assert any("node 1 does not stop in order" in line for line in world.history())


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_ends_in_memory_outlive_a_process_and_no_power_cut(
    monkeypatch: pytest.MonkeyPatch, *, is_power_cut: bool
) -> None:
    machine = Machine("node", "10.0.0.1", Random(1))
    kernel = Kernel(VirtualLoop(Random(1)), {"node": machine})
    monkeypatch.setattr(ends_in_memory, "mmap", kernel.mmap_module)

    def life() -> EndsInMemory:
        PROCESS.set(Process(machine))
        ends = EndsInMemory(Path(MEMORY), "disk")
        ends.begin(lambda _: True)
        return ends

    token = PROCESS.set(None)
    with kernel.installed(1):
        life().mark(KEY).move(77)
        kernel.forget(machine)
        machine.process_died()
        if is_power_cut:
            machine.lose_power()
        assert life().found == ({} if is_power_cut else {KEY: 77})
    PROCESS.reset(token)


@pytest.mark.parametrize("name", sim_bugs.names(DIRECTORY_BUGS))
def test_a_bug_in_what_a_directory_proves_is_found(name: str) -> None:
    assert find(BUGS[name], SEEDS) is not None, f"no seed of {SEEDS} finds: {name}"


def test_a_file_that_is_put_back_is_another_one_unless_its_file_system_is() -> None:
    files = Machine("node", "10.0.0.1", Random(1)).files
    files.create("/simulated/a")
    files.write(files.find("/simulated/a"), b"old", 0, 0)
    backup, number = files.root.copied(), files.find("/simulated/a").number
    files.write(files.find("/simulated/a"), b"new", 0, 0)
    files.create("/simulated/b")

    files.put_back(backup, is_file_system=True)
    assert (files.find("/simulated/a").number, files.find("/simulated/a").on_disk) == (number, b"old")
    with pytest.raises(FileNotFoundError):
        files.find("/simulated/b")
    files.put_back(backup, is_file_system=False)
    assert files.find("/simulated/a").number != number


def test_damage_is_in_memory_and_on_the_disk() -> None:
    files = Machine("node", "10.0.0.1", Random(1)).files
    inode = files.create("/simulated/a")
    files.write(inode, b"abcdef", 0, 0)
    files.flush(inode)
    inode.overwrite(1, 0x20)
    assert bytes(inode.data) == inode.on_disk == b"aBcdef"
    inode.cut(3, is_zeroed=True)
    assert bytes(inode.data) == inode.on_disk == b"aBc\0\0\0"
    inode.cut(2, is_zeroed=False)
    assert bytes(inode.data) == inode.on_disk == b"aB"


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_batch_without_one_of_its_sectors_is_not_there_although_its_header_is(*, is_on_disk: bool) -> None:
    """A start cuts there, so what lies behind is not there either."""
    inode = FileSystem(Random(1)).create("/a")
    batches = [encode_batch([Record(NEXT_OFFSET, 0, None, b"x" * 1_500)], base_offset=40 + at) for at in range(3)]
    inode.data = bytearray(b"\1" * SEGMENT_HEADER_BYTES + b"".join(batches))
    inode.durable, inode.durable_size = bytearray(inode.data), len(inode.data)
    whole_end = CopyEnds().end_of(inode, KEY, is_on_disk=is_on_disk), end_of(bytes(inode.data), KEY)
    begin = -(-(SEGMENT_HEADER_BYTES + len(batches[0]) + 61) // SECTOR_BYTES) * SECTOR_BYTES
    behind = SEGMENT_HEADER_BYTES + len(batches[0]) + len(batches[1])
    assert begin + SECTOR_BYTES <= behind, "another batch is hit, too"
    for content in (inode.data, inode.durable):
        content[begin : begin + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    torn_end = CopyEnds().end_of(inode, KEY, is_on_disk=is_on_disk), end_of(bytes(inode.data), KEY)
    assert (whole_end, torn_end) == ((43, 43), (41, 41))


@pytest.mark.parametrize("seed", range(20))
def test_where_a_copy_ends_is_the_same_whether_all_of_it_is_read_or_what_changed(seed: int) -> None:
    rng, ends = Random(seed), CopyEnds()
    files = FileSystem(rng)
    inode = files.create("/a")
    files.flush(files.root)
    files.write(inode, b"\1" * SEGMENT_HEADER_BYTES, 0, 0)
    found = set()
    for _ in range(150):
        change_at_random(files, inode, rng)
        if rng.random() < 0.7:
            expected = end_of(bytes(inode.data), KEY), end_of(inode.on_disk, KEY)
            assert (ends.end_of(inode, KEY, is_on_disk=False), ends.end_of(inode, KEY, is_on_disk=True)) == expected
            found.add(expected)
    assert len(found) > 10, "nearly nothing was written"


def change_at_random(files: FileSystem, inode: Inode, rng: Random) -> None:
    size = len(inode.data)
    match rng.randrange(16):
        case 0:
            files.truncate(inode, rng.randrange(size + 1))
        case 1:
            files.truncate(inode, size + 200)
        case 2 | 3:
            files.flush(inode)
        case 4:
            files.cut_power()
            if not any(inode.data[:SEGMENT_HEADER_BYTES]):
                files.write(inode, b"\1" * SEGMENT_HEADER_BYTES, 0, 0)
        case 5 if size:
            inode.overwrite(rng.randrange(size), 1)
        case 6 if size:
            inode.cut(rng.randrange(size), is_zeroed=rng.random() < 0.5)
        case _:
            end = end_of(bytes(inode.data), KEY)
            batch = encode_batch([Record(NEXT_OFFSET, 0, None, b"x" * rng.randrange(200))], base_offset=end)
            files.write(inode, batch, whole_bytes(inode) + rng.choice((0, 0, 0, 0, 0, 40)), 0)


def whole_bytes(inode: Inode) -> int:
    """Where the next batch belongs."""
    headers = scan_valid_prefix(bytes(inode.data[SEGMENT_HEADER_BYTES:]), KEY.base_offset, -1).headers
    return SEGMENT_HEADER_BYTES + sum(header.size_bytes for _, header in headers)
