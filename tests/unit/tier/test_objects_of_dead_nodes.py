"""What a dead node left in the bucket is swept by one living node, and nothing that it may still be asking for."""

from __future__ import annotations

import pytest

from stratalog.formats.bucket.object_names import BundleName
from stratalog.machines.tiering.upload_duty import sweeper_of
from stratalog.model.commands.table_commands import AcquireLock, CommitParts, NoteLives, RegisterNode
from stratalog.model.errors import Fenced
from stratalog.model.metadata import Life, Lock, NodeInfo, PartCommit
from stratalog.model.segment import RemotePart, Segment
from support.tier_rig import TierRig
from support.wrong_objects import rewritten_bundle

GRACE_MS = 600_001
OTHER = 2
DEAD = NoteLives(lost=(Life(OTHER, 1),))


def test_each_nodes_leavings_are_one_living_nodes() -> None:
    assert sweeper_of(3, {1, 2, 3}, None) == 3
    assert sweeper_of(3, {2, 5}, None) == 2
    assert sweeper_of(3, set(), None) is None
    assert sweeper_of(3, {2, 5}, 5) == 5, "who holds its mount"
    assert sweeper_of(3, {2, 3, 5}, 5) == 3


async def with_another_node(rig: TierRig) -> tuple[Segment, Lock]:
    """An active segment with committed data, and another node with a write lock of its own."""
    await rig.meta.perform(RegisterNode(NodeInfo(OTHER, "disk-2", "localhost", 9093)))
    lock = await rig.meta.perform(AcquireLock(f"tier/{OTHER}", "node-2/1", 60_000))
    shard = rig.shard(await rig.create_topic())
    await rig.start_uploader()
    for _ in range(70):
        rig.append(shard, 1_000)
    await rig.settle()
    return shard.segments[0], lock


@pytest.mark.fault("node-dies-permanently-cut")
async def test_its_orphans_go_once_its_lease_and_its_locks_are_over() -> None:
    async with TierRig() as rig:
        segment, lock = await with_another_node(rig)
        names, commit_offset = rig.names, segment.remote.commit_offset
        orphan = names.chunk(segment.key, 0, 5, node_id=OTHER, lock_epoch=1, attempt=1)
        keep = [
            names.chunk(segment.key, 0, 5, node_id=OTHER, lock_epoch=7, attempt=1),  # newer than these metadata
            names.chunk(segment.key, 0, commit_offset + 5, node_id=OTHER, lock_epoch=1, attempt=2),  # not committed
            names.chunk(segment.key, 0, 5, node_id=3, lock_epoch=1, attempt=1),  # of an unknown node
        ]
        for name in (orphan, *keep):
            await rig.store.put(name, [b"x"])
        rig.advance(1)
        assert (await rig.janitor().sweep_now()).orphans == 0, "it lives, and sweeps itself"
        await rig.meta.perform(DEAD)
        await rig.until(lambda: not rig.catalog.is_alive(OTHER))
        assert (await rig.janitor().sweep_now()).orphans == 0, "younger than the grace"
        rig.advance(GRACE_MS)
        await rig.meta.perform(AcquireLock(f"tier/{OTHER}", "node-2/1", 60_000))
        assert (await rig.janitor().sweep_now()).orphans == 0, "it may be cut off, and its lock's lease lasts"
        rig.advance(60_001)
        for _ in range(3):
            report = await rig.janitor().sweep_now()
        assert rig.store.deletions == [orphan]
        assert report.unexplained == [keep[0]]
        part = RemotePart(keep[1], 0, 10, commit_offset, commit_offset + 5)
        late = CommitParts(lock, (PartCommit(segment.key, commit_offset, part),))
        with pytest.raises(Fenced):  # whatever it still has on its way
            await rig.meta.perform(late)
        rig.advance(1)
        again = await rig.meta.perform(AcquireLock(f"tier/{OTHER}", "node-2/2", 60_000))
        assert again.epoch == 3, "one epoch was spent, however often they looked, and it need not wait"
        await rig.check()


@pytest.mark.fault("node-dies-permanently-cut")
async def test_its_bundles_go_when_nothing_refers_to_them_and_all_of_them_is_explained() -> None:
    async with TierRig() as rig:
        await rig.meta.perform(RegisterNode(NodeInfo(OTHER, "disk-2", "localhost", 9093)))
        topic = await rig.create_topic(shards=3)
        await rig.start_uploader()
        for index in range(3):
            rig.append(rig.shard(topic, index), 1_000)
        await rig.settle()
        (bundle,) = await rig.store.keys(rig.names.bundles_prefix)
        left = rig.names.bundle(node_id=OTHER, lock_epoch=1, number=1, attempt=1)
        newer = rig.names.bundle(node_id=OTHER, lock_epoch=9, number=1, attempt=1)
        await rig.meta.perform(AcquireLock(f"tier/{OTHER}", "node-2/1", 1))
        for key in (left, newer):
            name = rig.names.parse(key)
            assert isinstance(name, BundleName)
            await rig.store.put(key, [rewritten_bundle(await rig.store.inner.get(bundle), name)])
        await rig.meta.perform(DEAD)
        await rig.until(lambda: not rig.catalog.is_alive(OTHER))
        janitor = rig.janitor()
        for _ in range(3):
            rig.advance(GRACE_MS)
            await janitor.sweep_now()
        assert set(await rig.store.keys(rig.names.bundles_prefix)) == {bundle, newer}
        await rig.check()
