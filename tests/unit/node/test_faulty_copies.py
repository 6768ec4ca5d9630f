"""A node whose disk fails under a copy reports it, and the other node continues without a restart."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog_node.node import StorageNode, wall_ms
from stratalog_node.shards.log.shard_log import ShardLog
from support.power import PowerRecord
from support.waiting import eventually
from unit.node.test_two_nodes import Pair, append, is_copied, led


@pytest.fixture
def power(tmp_path: Path) -> Iterator[PowerRecord]:
    with PowerRecord(tmp_path) as record:
        yield record


@pytest.fixture
async def pair(tmp_path: Path, power: PowerRecord) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path)
    await pair.meta.service.start()
    await pair.start(1)
    await pair.start(2)
    yield pair
    power.fail_next = lambda path: None
    for node_id in list(pair.nodes):
        await pair.stop(node_id)
    await pair.meta.service.close()


def break_disk_of(power: PowerRecord, node: StorageNode) -> None:
    root = node.local.context.layout.root
    broken = lambda path: path.suffix == ".seg" and root in path.parents  # noqa: E731
    power.fail_next = lambda path: OSError(errno.EIO, "Input/output error") if broken(path) else None


def segment_at(node: StorageNode, key: SegmentKey) -> Segment:
    segment = node.catalog.segment(key)
    assert segment is not None
    return segment


def active_key(shard: ShardLog) -> SegmentKey:
    assert shard.active is not None
    return shard.active.key


@pytest.mark.fault("leader-disk-fails-node")
async def test_a_leader_whose_flush_fails_passes_the_shard_on(pair: Pair, power: PowerRecord) -> None:
    leader, follower, shard = await pair.shard(flush_policy="replicated")
    for number in range(5):
        await append(shard, b"%d" % number)
    key = active_key(shard)
    break_disk_of(power, leader)
    shard.ask_roll(wall_ms())
    await eventually(lambda: shard.stop is not None and shard.stop.cause in (StopCause.FLUSH_FAILED, StopCause.DEPOSED))
    await eventually(lambda: led(follower, shard) is not None)
    assert segment_at(follower, key).isr == (follower.settings.node_id,)
    goes_on = led(follower, shard)
    assert goes_on is not None
    await eventually(lambda: segment_at(follower, key).seal is not None)
    assert segment_at(follower, key).local_nodes == (follower.settings.node_id,)
    assert await append(goes_on, b"later") == 5, "all five that were acknowledged are there"
    assert goes_on.high_watermark == 6


@pytest.mark.fault("follower-disk-fails-copy")
async def test_a_seal_does_not_wait_for_a_follower_whose_flush_fails(pair: Pair, power: PowerRecord) -> None:
    leader, follower, shard = await pair.shard(flush_policy="replicated")
    await append(shard, b"one")
    await eventually(lambda: is_copied(follower, shard))
    key = active_key(shard)
    break_disk_of(power, follower)
    shard.ask_roll(wall_ms())
    await eventually(lambda: segment_at(leader, key).seal is not None)
    assert segment_at(leader, key).local_nodes == (leader.settings.node_id,)


@pytest.mark.fault("follower-disk-fails-copy")
async def test_an_unreadable_copy_is_set_aside_and_fetched_again(pair: Pair) -> None:
    leader, follower, shard = await pair.shard()
    await append(shard, b"one")
    await eventually(lambda: is_copied(follower, shard))
    node_id, key = follower.settings.node_id, active_key(shard)
    path = follower.local.context.layout.segment(key)
    await pair.stop(node_id)
    whole = path.read_bytes()
    path.write_bytes(b"\xff" * 200 + whole[200:])
    follower = await pair.start(node_id)
    await eventually(lambda: is_copied(follower, shard))
    await eventually(lambda: set(segment_at(leader, key).isr) == {1, 2})
    aside = [entry for entry in path.parent.iterdir() if entry.name.startswith(path.stem) and entry != path]
    assert any(entry.read_bytes() != whole for entry in aside), "a person may still look at what was there"


@pytest.mark.fault("leader-copy-bad-end", "bit-flips-copy-seal")
async def test_a_leader_whose_copy_went_bad_before_its_seal_passes_the_shard_on(pair: Pair) -> None:
    """Otherwise it is never sealed, and no other node may serve it, until the node is restarted."""
    leader, follower, shard = await pair.shard()
    for number in range(5):
        await append(shard, b"%d" % number)
    await eventually(lambda: is_copied(follower, shard))
    key = active_key(shard)
    path = leader.local.context.layout.segment(key)
    whole = path.read_bytes()
    at = whole.rindex(b"4")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"?")
    shard.ask_roll(wall_ms())
    await eventually(lambda: segment_at(follower, key).seal is not None)
    of_shard = key.shard_key
    await eventually(lambda: all(segment.seal for segment in follower.catalog.segments(of_shard)[:-1]))
    goes_on = led(follower, shard)
    assert goes_on is not None and await append(goes_on, b"later") == 5, "all that was acknowledged is there"
    await eventually(lambda: segment_at(follower, key).local_nodes == (1, 2), 30)  # begun again after 10 s
    await eventually(lambda: path.read_bytes()[: len(whole)].rstrip(b"\0") == whole.rstrip(b"\0"))
