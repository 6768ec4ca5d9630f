"""Rolls that move the leader of a shard from one real node to another (docs/replication.md section 5)."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.commands.table_commands import (
    BeginRecovery,
    CreateTopic,
    PrepareSegment,
    ProposeIsr,
    ReportReplica,
    RollSegment,
)
from stratalog.model.errors import Fenced, OutcomeUnknown
from stratalog.model.ids import ShardKey
from stratalog_node.shards.copies import file_removal
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.file_removal import FileRemoval
from stratalog_node.shards.flush import flusher
from stratalog_node.shards.seal import rolls
from support.node_cluster import NodeCluster
from support.shard_rig import make_batch
from support.waiting import eventually

PRODUCER = {"producer_id": 7, "producer_epoch": 0}


@pytest.fixture
def segments_apart(tmp_path: Path) -> Iterator[None]:
    """On a file system of their own."""
    other = Path("/dev/shm")
    if not other.is_dir() or os.stat(other).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("only one file system here")
    with tempfile.TemporaryDirectory(dir=other) as apart:
        for node_id in ("1", "2"):
            (Path(apart) / node_id).mkdir()
            (tmp_path / node_id).mkdir()
            (tmp_path / node_id / "segments").symlink_to(Path(apart) / node_id)
        yield


async def burden(cluster: NodeCluster, key: ShardKey, new: int) -> None:
    """The leader leads so much else that another segment of the shard goes to the other node."""
    await cluster.lose(new)
    for number in range(4):
        await cluster.meta.service.perform(CreateTopic(f"burden-{number}", 1, 1))
    await eventually(lambda: len(cluster.segments(key)[0].isr) == 1)
    prepared = cluster.segments(key)[0].handed.prepared
    if prepared is not None:
        await cluster.meta.service.perform(prepare_again(cluster, key))
    await cluster.restore_heartbeats(new)
    await eventually(lambda: set(cluster.segments(key)[0].isr) == {1, 2})


def prepare_again(cluster: NodeCluster, key: ShardKey) -> PrepareSegment:
    return PrepareSegment(cluster.segments(key)[0].key, caller=cluster.nodes[cluster.leader(key)].meta.life)


async def burdened(cluster: NodeCluster) -> tuple[ShardKey, int, int]:
    """A shard of two replicas that the next roll moves, its leader, and its next leader."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    old = cluster.leader(key)
    (new,) = (number for number in (1, 2) if number != old)
    await cluster.append(key, b"0", **PRODUCER, base_sequence=0)
    await burden(cluster, key, new)
    cluster.meta.calls.clear()
    return key, old, new


@pytest.mark.fault("producer-continues-old-leader")
async def test_a_roll_that_moves_the_leader_takes_two_commits_and_no_seal(cluster: NodeCluster) -> None:
    key, old, new = await burdened(cluster)
    cluster.meta.hold(ReportReplica)
    shard = cluster.nodes[old].shards.get(key)
    assert shard is not None
    shard.ask_roll(0)
    await eventually(lambda: cluster.led(key) is not None and cluster.leader(key) == new)
    with pytest.raises(Fenced):
        await shard.append([make_batch([b"to the old leader"])])
    assert shard.leader == (new, 1), "it says who leads now"
    assert await cluster.append(key, b"0", **PRODUCER, base_sequence=0) == 0, "a repetition is known as one"
    assert await cluster.append(key, b"1", **PRODUCER, base_sequence=1) == 1
    asked = cluster.meta.calls
    assert (asked[PrepareSegment], asked[RollSegment], asked[ProposeIsr]) == (1, 1, 0)
    assert cluster.segments(key)[0].seal is None, "nothing waited for the seal"
    cluster.meta.release(ReportReplica)
    segment = await cluster.is_sealed(key, copies=2)
    table = await cluster.nodes[new].local.context.tables.producers(segment, is_far=False)
    assert [one.producer_id for one in table] == [7]


async def rolling(cluster: NodeCluster) -> tuple[ShardKey, int, int, asyncio.Future[int]]:
    """The leader has gone on in the next segment, whose roll the service has not heard of. What it wrote there."""
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    old = cluster.leader(key)
    (new,) = (number for number in (1, 2) if number != old)
    await cluster.append(key, b"0", **PRODUCER, base_sequence=0)
    cluster.meta.hold(RollSegment)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    await eventually(lambda: shard.active is not None and shard.active.key.epoch == 1)
    ahead = cluster.offer(key, b"1", **PRODUCER, base_sequence=1)
    await eventually(lambda: shard.end_offset == 2)
    return key, old, new, ahead


async def goes_on(cluster: NodeCluster, key: ShardKey, *, is_unknown: bool = False) -> None:
    """What was written ahead is lost, or its outcome unknown; its retry is appended once, and all copies are the
    same."""
    await cluster.append(key, b"another first")
    offset = await cluster.append(key, b"1", **PRODUCER, base_sequence=1)
    assert offset == 2 or is_unknown
    assert await cluster.append(key, b"1", **PRODUCER, base_sequence=1) == offset
    newest = cluster.segments(key)[-1].epoch
    (await cluster.leads_again(key)).ask_roll(0)
    for epoch in range(newest + 1):
        segment = await cluster.is_sealed(key, epoch, copies=2)
        assert not segment.handed.reports, "all copies are the same"
    values = await cluster.values(key)
    assert values[offset] == b"1" and sorted(map(bytes, values)) == [b"0", b"1", b"another first"]


@pytest.mark.fault("answer-roll-names-leader")
async def test_a_roll_that_is_answered_with_another_leader_throws_away_what_was_written_ahead(
    cluster: NodeCluster,
) -> None:
    key, old, new, ahead = await rolling(cluster)
    await burden(cluster, key, new)
    chosen = (await cluster.meta.service.perform(prepare_again(cluster, key))).handed.prepared
    assert chosen is not None and chosen.leader == new
    cluster.meta.release(RollSegment)
    with pytest.raises(Fenced):
        await ahead
    await goes_on(cluster, key)
    assert not list(cluster.layout(old).root.glob("**/*.unconfirmed"))


@pytest.mark.fault("answer-roll-names-leader")
@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_successor_that_was_fenced_before_its_leader_heard_of_it_is_thrown_away(
    cluster: NodeCluster, is_answered: bool
) -> None:
    key, old, _, ahead = await rolling(cluster)
    if is_answered:  # the watch is faster than the answer
        ended = cluster.segments(key)[0].key
        opened = await cluster.meta.service.perform(RollSegment(ended, 1, caller=cluster.nodes[old].meta.life))
        await cluster.meta.service.perform(BeginRecovery(opened.key))
    else:
        await eventually(lambda: cluster.meta.calls[RollSegment] == 1)
        cluster.meta.lose_answer(RollSegment)
        cluster.meta.release(RollSegment)
        cluster.meta.hold(RollSegment)  # asked again in vain
        await eventually(lambda: len(cluster.segments(key)) == 2)
        await cluster.lose(old)
        await cluster.restore_heartbeats(old)
    cluster.meta.release(RollSegment)
    with pytest.raises(OutcomeUnknown):  # a follower may have asked for it
        await ahead
    await goes_on(cluster, key, is_unknown=True)


class HeldNaming:
    """The thread that gives a rolled file its name stops before that, or with `is_named` after it."""

    def __init__(self, patch: pytest.MonkeyPatch, *, is_named: bool) -> None:
        name = rolls._name
        self.is_standing, self.may_go, self.is_over = threading.Event(), threading.Event(), threading.Event()

        def held(active: ActiveSegment) -> None:
            if is_named:
                name(active)
            self.is_standing.set()
            self.may_go.wait(20)
            if not is_named:
                name(active)
            self.is_over.set()

        patch.setattr(rolls, "_name", held)


async def deposed_while_naming(cluster: NodeCluster, naming: HeldNaming) -> tuple[ShardKey, int]:
    """The service opened the next segment, and its leader is deposed before it has the file ready. That leader."""
    key, old, _, ahead = await rolling(cluster)
    cluster.meta.release(RollSegment)
    await eventually(naming.is_standing.is_set)
    await cluster.lose(old)
    await cluster.restore_heartbeats(old)
    with pytest.raises(OutcomeUnknown):
        await ahead
    await eventually(lambda: cluster.led(key) is not None)  # by the other one, or by this one again
    return key, old


@pytest.mark.fault("leader-deposed-thread-gives")
async def test_a_deposed_leader_follows_once_the_file_that_it_throws_away_is_gone(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found that file, went by it, and lost it a moment later."""
    naming = HeldNaming(monkeypatch, is_named=True)
    key, old = await deposed_while_naming(cluster, naming)
    following = cluster.nodes[old].following
    await eventually(
        lambda: following._opening or cluster.replica(old, key, 1) is not None or cluster.leader(key) == old
    )  # it would use that file
    naming.may_go.set()
    await goes_on(cluster, key, is_unknown=True)
    assert cluster.layout(old).segment(cluster.segments(key)[1].key).exists()


@pytest.mark.fault("leader-deposed-thread-gives")
async def test_a_file_that_is_thrown_away_takes_the_name_of_no_copy(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy was made under that name and proven, and the thread put the other file in its place."""
    monkeypatch.setattr(file_removal, "_PIN_POLLS", 3)
    naming = HeldNaming(monkeypatch, is_named=False)
    key, old = await deposed_while_naming(cluster, naming)
    segment = await cluster.is_sealed(key, 1, copies=2)
    path = cluster.layout(old).segment(segment.key)
    proven = path.read_bytes()
    naming.may_go.set()
    await eventually(naming.is_over.is_set)
    assert path.read_bytes() == proven
    await goes_on(cluster, key, is_unknown=True)


async def leads_the_same_again(cluster: NodeCluster, key: ShardKey, old: int) -> asyncio.Task[int]:
    """The end of what came before is taken from it alone: it threw away what it had begun behind that end, and is
    named as the one that leads it. What a client writes there now."""
    await cluster.meta.service.perform(BeginRecovery(cluster.segments(key)[0].key))
    await cluster.is_sealed(key)
    await eventually(lambda: cluster.led(key) is not None and cluster.leader(key) == old)
    shard = cluster.nodes[old].shards.get(key)
    assert shard is not None and shard.active is None, "it begins the next segment again"
    return asyncio.create_task(cluster.append(key, b"another first"))


async def is_on_its_disk(cluster: NodeCluster, key: ShardKey, old: int) -> None:
    """What was acknowledged in the segment that was begun twice."""
    segment = next(one for one in cluster.segments(key) if one.epoch == 1)
    await cluster.nodes[old].local.context.removal.settle(segment.key)
    assert b"another first" in cluster.layout(old).segment(segment.key).read_bytes()


@pytest.mark.fault("deposed-leader-named-leader")
async def test_a_file_that_is_thrown_away_takes_the_name_of_no_segment_that_is_begun_again(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put in the place of what had been acknowledged meanwhile, and removed there."""
    monkeypatch.setattr(file_removal, "_PIN_POLLS", 30)
    naming = HeldNaming(monkeypatch, is_named=False)
    key, old, _, ahead = await rolling(cluster)
    cluster.meta.release(RollSegment)
    await eventually(naming.is_standing.is_set)
    written = await leads_the_same_again(cluster, key, old)
    with pytest.raises(OutcomeUnknown):
        await ahead
    await asyncio.wait([written], timeout=0.1)
    naming.may_go.set()
    await eventually(naming.is_over.is_set)
    assert await written == 1
    await is_on_its_disk(cluster, key, old)


async def named_ahead(cluster: NodeCluster, naming: HeldNaming, **settings: str) -> tuple[ShardKey, int]:
    """The service opened the next segment, and its file has its name, which its leader does not know yet."""
    await cluster.start(1, 2)
    key = await cluster.shard(2, **settings)
    await cluster.append(key, b"0")
    (await cluster.leads_again(key)).ask_roll(0)
    await eventually(naming.is_standing.is_set)
    return key, cluster.leader(key)


@pytest.mark.fault("deposed-leader-named-leader")
async def test_a_segment_is_begun_again_once_its_first_file_is_gone(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged in the second one was in no directory any more."""
    may_go, take_away = threading.Event(), FileRemoval._take_away

    def held(removal: FileRemoval, *given: Any, **how: Any) -> None:
        may_go.wait(20)
        take_away(removal, *given, **how)

    monkeypatch.setattr(FileRemoval, "_take_away", held)
    naming = HeldNaming(monkeypatch, is_named=True)
    key, old = await named_ahead(cluster, naming)
    written = await leads_the_same_again(cluster, key, old)
    await asyncio.wait([written], timeout=0.3)
    may_go.set()
    naming.may_go.set()
    assert await written == 1
    await is_on_its_disk(cluster, key, old)


@pytest.mark.fault("leader-throws-away-wrote")
async def test_what_is_thrown_away_was_given_to_no_follower(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had it, confirmed with it what the leader gave the same offset afterwards, and the copies differed."""
    naming = HeldNaming(monkeypatch, is_named=True)
    key, old = await named_ahead(cluster, naming)
    (new,) = (number for number in (1, 2) if number != old)
    ahead = cluster.offer(key, b"thrown away")
    await eventually(lambda: cluster.replica(new, key, 1) is not None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(ahead), 0.2)
    replica = cluster.replica(new, key, 1)
    assert replica is not None and replica.end_offset == 1
    written = await leads_the_same_again(cluster, key, old)
    naming.may_go.set()
    with pytest.raises(OutcomeUnknown):
        await ahead
    assert await written == 1
    (await cluster.leads_again(key)).ask_roll(0)
    segment = await cluster.is_sealed(key, 1, copies=2)
    assert not segment.handed.reports, "all copies are the same"
    assert await cluster.values(key) == [b"0", b"another first"]


@pytest.mark.fault("leader-throws-away-wrote")
async def test_what_was_thrown_away_comes_back_with_no_journal(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A start put it in the place of what had been acknowledged in the segment that was begun again, and the other
    node's copy was held for the wrong one."""
    naming = HeldNaming(monkeypatch, is_named=True)
    key, old = await named_ahead(cluster, naming, flush_policy="fsync")
    monkeypatch.setattr(flusher, "DIRECT_FILES", 0)
    stats = cluster.nodes[old].local.flusher.stats
    groups = stats.groups
    ahead = cluster.offer(key, b"thrown away")
    await eventually(lambda: stats.groups > groups)
    monkeypatch.setattr(flusher, "DIRECT_FILES", 100)
    written = await leads_the_same_again(cluster, key, old)
    naming.may_go.set()
    with pytest.raises(OutcomeUnknown):
        await ahead
    assert await written == 1
    killed = shutil.copytree(cluster.layout(old).root, tmp_path / "as a kill leaves it")
    await cluster.stop(old)
    shutil.rmtree(cluster.layout(old).root)
    killed.rename(cluster.layout(old).root)
    await cluster.start(old)
    segment = await cluster.is_sealed(key, 1, copies=2)
    assert not segment.handed.reports, "all copies are the same"
    assert b"another first" in cluster.layout(old).segment(segment.key).read_bytes()
    assert await cluster.values(key) == [b"0", b"another first"]


@pytest.mark.fault("next-segment-belongs-node")
async def test_batches_written_ahead_are_discarded_after_a_kill(cluster: NodeCluster) -> None:
    """The next segment is another node's, and begins at the same offset: its file has the same name."""
    await written_ahead_and_killed(cluster)


@pytest.mark.fault("node-killed-roll-confirmed")
@pytest.mark.usefixtures("segments_apart")
async def test_nor_where_the_segments_have_a_file_system_of_their_own(cluster: NodeCluster) -> None:
    await written_ahead_and_killed(cluster)


async def written_ahead_and_killed(cluster: NodeCluster) -> None:
    key, old, new, ahead = await rolling(cluster)
    ahead.add_done_callback(lambda done: done.exception())
    await burden(cluster, key, new)
    await cluster.meta.service.perform(prepare_again(cluster, key))
    await cluster.kill(old)
    cluster.meta.release(RollSegment)
    await cluster.start(old)
    await eventually(lambda: cluster.led(key) is not None and cluster.leader(key) == new)
    assert cluster.segments(key)[1].base_offset == 1
    await goes_on(cluster, key)


@pytest.mark.fault("node-killed-roll-confirmed", "answer-roll-names-leader")
async def test_a_roll_of_a_single_replica_that_is_answered_with_another_leader(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(1)
    old = cluster.leader(key)
    await cluster.append(key, b"0", **PRODUCER, base_sequence=0)
    cluster.meta.hold(RollSegment)
    shard = await cluster.leads_again(key)
    shard.ask_roll(0)
    await eventually(lambda: shard.active is not None and shard.active.key.epoch == 1)
    ahead = cluster.offer(key, b"1", **PRODUCER, base_sequence=1)
    await eventually(lambda: cluster.meta.calls[RollSegment] == 1)
    begun = cluster.layout(old).segment(shard.active.key) if shard.active is not None else None
    assert begun is not None and not begun.exists(), "a kill leaves nothing that it could take for its copy one day"
    await cluster.lose(old)  # what it has alone stays its own, and what comes next does not
    cluster.meta.release(RollSegment)
    with pytest.raises(Fenced):
        await ahead
    await cluster.append(key, b"another first")
    assert await cluster.append(key, b"1", **PRODUCER, base_sequence=1) == 2
    segment = await cluster.is_sealed(key)
    assert segment.local_nodes == (old,)


@pytest.mark.fault("answer-roll-lost-segment")
@pytest.mark.parametrize("replicas", [1, 2])
async def test_what_follows_a_deleted_segment_has_its_name_though_the_answer_to_its_roll_is_lost(
    cluster: NodeCluster, replicas: int
) -> None:
    """It counted as confirmed with the deletion, and never got its name: the next start removed what had been
    acknowledged in it."""
    await cluster.start(1, 2)
    key = await cluster.shard(replicas)
    await cluster.append(key, b"0")
    shard, old = await cluster.leads_again(key), cluster.leader(key)
    cluster.meta.hold(RollSegment)
    shard.ask_roll(0)
    await eventually(lambda: cluster.meta.calls[RollSegment] == 1)
    cluster.meta.lose_answer(RollSegment)
    cluster.meta.release(RollSegment)
    cluster.meta.hold(RollSegment)  # asked again in vain
    await eventually(lambda: len(cluster.segments(key, old)) == 2)
    deleted = cluster.segments(key, old)[0].key
    await shard.delete_records_before(1)
    await eventually(lambda: len(cluster.segments(key, old)) == 1)
    await cluster.nodes[old].local.copies.free_local(shard, deleted)
    assert await cluster.append(key, b"1") == 1
    assert shard.active is not None and shard.active.file.path.exists()
    await cluster.kill(old)
    cluster.meta.release(RollSegment)
    await cluster.start(old)
    assert await cluster.values(key) == [b"1"]


@pytest.mark.fault("rolls-clients-write")
async def test_many_rolls_under_parallel_writes_lose_and_repeat_nothing(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    given: dict[int, bytes] = {}

    async def write(row: int, writer: int) -> None:
        for number in range(3):
            value = b"%d of %d in %d" % (number, writer, row)
            given[await cluster.append(key, value)] = value

    async def roll(count: int) -> None:
        while len(cluster.segments(key)) <= count:
            (await cluster.leads_again(key)).ask_roll(0)
            await asyncio.sleep(0.005)

    for row in range(8):
        await asyncio.gather(roll(row + 1), *(write(row, writer) for writer in range(4)))
    assert await cluster.values(key) == [given[offset] for offset in range(96)]
