"""A node comes with an older state of its directory, on the same machine, or with a copy of it while it runs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from stratalog.machines.leading.shard_life import StopCause
from stratalog.model.errors import LeaseHeld
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import GapReason, SegmentState, Vote
from stratalog_node import heartbeats
from support.node_cluster import NodeCluster
from support.waiting import eventually

BEFORE, SINCE = [b"before %d" % at for at in range(5)], [b"since %d" % at for at in range(5)]


def put_back(backup: Path, directory: Path, *, in_place: bool) -> None:
    if not in_place:
        shutil.rmtree(directory)
    shutil.copytree(backup, directory, dirs_exist_ok=in_place)


async def written_behind_a_backup(
    cluster: NodeCluster, policy: str, *, restarts: bool
) -> tuple[ShardKey, SegmentKey, int, Path]:
    """Three nodes have acknowledged all records and are dead; there is a backup of one's directory, from before some of
    them were written. `restarts`: that node has begun another life since."""
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3, min_insync_replicas="2", flush_policy=policy)
    restored = next(node_id for node_id in (3, 2) if node_id != cluster.leader(key))
    for record in BEFORE:
        await cluster.append(key, record)
    directory = cluster.layout(restored).root
    backup = directory.with_name("backup")
    if restarts:
        await cluster.kill(restored)
    shutil.copytree(directory, backup)
    if restarts:
        await cluster.start(restored)
    segment = cluster.segments(key)[0].key
    for record in SINCE:
        await cluster.append(key, record)
    await eventually(lambda: cluster.replica(restored, key).end_offset == len(BEFORE + SINCE))
    for node_id in (1, 2, 3):
        await cluster.kill(node_id)
    for node_id in (1, 2, 3):
        await cluster.lose(node_id)
    return key, segment, restored, backup


@pytest.mark.fault("older-copy-node-directory")
@pytest.mark.parametrize("policy", ["replicated", "fsync"])
@pytest.mark.parametrize("restarts", [False, True], ids=["copied in its last life", "copied in an earlier life"])
async def test_an_older_state_of_a_directory_that_comes_first_decides_nothing(
    cluster: NodeCluster, policy: str, restarts: bool
) -> None:
    key, segment, restored, backup = await written_behind_a_backup(cluster, policy, restarts=restarts)
    put_back(backup, cluster.layout(restored).root, in_place=False)

    async def votes() -> list[Vote]:
        return list((await cluster.meta.service.segment(segment)).handed.votes)

    for _ in range(2):  # another start does not make it better
        await cluster.start(restored)
        await eventually(votes)
        record = await cluster.meta.service.segment(segment)
        assert record.state is SegmentState.ACTIVE, f"it waits for the others: {record}"
        assert [doubt.node_id for doubt in record.handed.doubts] == [restored]
        await cluster.kill(restored)
    await cluster.start(restored)
    good, other = (node_id for node_id in (1, 2, 3) if node_id != restored)
    await cluster.start(good)
    assert await cluster.values(key) == BEFORE + SINCE
    await cluster.start(other)
    sealed = await cluster.is_sealed(key, copies=3)
    assert sealed.end_offset == len(BEFORE + SINCE) and not sealed.handed.given_up


@pytest.mark.fault("older-copy-node-directory")
async def test_files_over_which_an_older_state_was_written_are_known_by_the_life_they_name(
    cluster: NodeCluster,
) -> None:
    _, segment, restored, backup = await written_behind_a_backup(cluster, "replicated", restarts=True)
    put_back(backup, cluster.layout(restored).root, in_place=True)
    await cluster.start(restored)
    record = await cluster.meta.service.segment(segment)
    assert [doubt.node_id for doubt in record.handed.doubts] == [restored]


@pytest.mark.fault("older-copy-node-directory")
async def test_sealed_copies_that_an_older_state_has_in_part_are_copied_again(cluster: NodeCluster) -> None:
    await cluster.start(1, 2, 3)
    key = await cluster.shard(3)
    for record in BEFORE:
        await cluster.append(key, record)
    restored = next(node_id for node_id in (3, 2) if node_id != cluster.leader(key))
    directory = cluster.layout(restored).root
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    for record in SINCE:
        await cluster.append(key, record)
    (await cluster.leads_again(key)).ask_roll(0)
    sealed = await cluster.is_sealed(key, copies=3)
    assert sealed.seal is not None
    await cluster.kill(restored)
    put_back(backup, directory, in_place=False)
    await cluster.start(restored)
    path = cluster.layout(restored).segment(sealed.key)
    whole_bytes = cluster.layout(cluster.leader(key)).segment(sealed.key).stat().st_size
    await eventually(lambda: path.stat().st_size == whole_bytes)
    await cluster.is_sealed(key, copies=3)
    assert cluster.nodes[restored].following.stats.lost_copies == 1


@pytest.mark.fault("copy-living-node-directory")
async def test_a_copy_of_a_directory_is_refused_while_its_node_runs_and_proves_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, lease_ms=2_000) as cluster:
        await cluster.start(1)
        key = await cluster.shard(1)
        for record in BEFORE:
            await cluster.append(key, record)
        clone = tmp_path / "clone"
        shutil.copytree(tmp_path / "1", clone)
        for record in SINCE:
            await cluster.append(key, record)
        original = cluster.nodes[1]
        cluster.root = clone.parent / "clones"
        cluster.root.mkdir()
        clone.rename(cluster.root / "1")
        monkeypatch.setattr(heartbeats, "LONGEST_WAIT_S", 0.0)
        with pytest.raises(LeaseHeld, match="one of the two is a copy"):
            await cluster.start(1)
        assert cluster.nodes[1] is original and not original.is_over.is_set()
        assert await cluster.values(key) == BEFORE + SINCE
        assert cluster.meta.service.life_stats.refused == 1
        monkeypatch.setattr(heartbeats, "LONGEST_WAIT_S", 15.0)

        original._heartbeats._task.cancel()  # as if it were cut off from the service
        await cluster.start(1)
        (known,) = (await cluster.meta.service.snapshot()).nodes
        assert known.epoch == 2
        (gap,) = cluster.segments(key)[-1].handed.given_up or cluster.segments(key)[0].handed.given_up
        assert gap.base_offset == gap.end_offset, "what it lacks nobody knows, and readers are told"
        await original.close()


@pytest.mark.fault("process-killed-started-once")
async def test_a_killed_process_is_followed_at_once_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with NodeCluster(tmp_path, monkeypatch, lease_ms=600_000) as cluster:
        await cluster.start(1)
        node = cluster.nodes.pop(1)
        node._heartbeats._task.cancel()  # it says no goodbye
        node._heartbeats._is_over = True
        await node.close()
        async with asyncio.timeout(30):
            await cluster.start(1)
        assert cluster.meta.service.life_stats.refused == 0


@pytest.mark.fault("two-directories-storage-id")
@pytest.mark.parametrize("is_same_machine", [True, False], ids=["same machine", "another machine"])
async def test_two_directories_of_one_storage_come_one_after_the_other(
    cluster: NodeCluster, tmp_path: Path, is_same_machine: bool
) -> None:
    """The node has the only replica. On the machine of the last life it knows from memory what the copy lacks. On
    another one it cannot, so the record says that the log may have a break."""
    await cluster.start(1)
    key = await cluster.shard(1)
    for record in BEFORE:
        await cluster.append(key, record)
    original, clone, kept = cluster.layout(1).root, tmp_path / "clone", tmp_path / "original"
    shutil.copytree(original, clone)
    for record in SINCE:
        await cluster.append(key, record)
    await cluster.kill(1)
    await cluster.lose(1)
    original.rename(kept)
    clone.rename(original)
    if not is_same_machine:
        cluster.forget_memory(1)
    await cluster.start(1)
    (gap,) = cluster.segments(key)[0].handed.given_up
    assert gap.reason is GapReason.RESTARTED
    shard = cluster.nodes[1].shards.get(key)
    assert shard is not None
    if is_same_machine:
        await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
        assert shard.stop is not None and "offsets 5 to 10 were written and are lost" in shard.stop.reason
    else:
        assert await cluster.append(key, b"of the copy") == len(BEFORE)

    await cluster.kill(1)
    await cluster.lose(1)
    original.rename(clone)
    kept.rename(original)
    await cluster.start(1)
    if is_same_machine:
        assert await cluster.values(key) == BEFORE + SINCE
        return
    shard = cluster.nodes[1].shards.get(key)
    assert shard is not None
    await eventually(lambda: shard.stop is not None and shard.stop.cause is StopCause.DATA_LOST)
    assert shard.stop is not None and "offsets 5 to 6 were written and are lost" in shard.stop.reason
    assert b"since 4" in cluster.layout(1).segment(cluster.segments(key)[0].key).read_bytes(), "a person may want it"
