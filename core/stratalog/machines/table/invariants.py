"""What is always true of the shard table, checked in full: for tests, simulations and after a load in doubt."""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.copies.internal_topics import is_reserved
from stratalog.machines.copies.placement import LEADER_WEIGHT, weights_of
from stratalog.machines.quotas.alterations import NO_LIMITS, check_limits
from stratalog.machines.rights.authorizer import check_rule
from stratalog.machines.table.locks import NOBODY
from stratalog.machines.table.remote import NO_COMMIT
from stratalog.machines.table.rights import check_credential
from stratalog.machines.table.state import ShardEntry, TableState, describe_segment, is_unsettled
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import life_name
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.segment import NO_HANDOVER, GapReason, RemoteState, Segment, SegmentState
from stratalog.model.storage_policy import StoragePolicy
from stratalog.model.topic import undotted_name


def check_invariants(state: TableState) -> None:
    """Raise AssertionError for a state that no sequence of commands may reach. Cost: O(everything)."""
    assert {topic.name: topic_id for topic_id, topic in state.topics.items()} == state.topic_ids, "names lead to topics"
    undotted = sorted((undotted_name(name) or "", name) for name in state.topic_ids if undotted_name(name) is not None)
    assert sorted((one, name) for one, names in state.undotted.items() for name in names) == undotted, "and once each"
    assert all(topic.is_internal == is_reserved(topic.name) for topic in state.topics.values()), (
        "internal by their names"
    )
    wanted = {ShardKey(topic.topic_id, shard) for topic in state.topics.values() for shard in range(topic.shard_count)}
    assert wanted == set(state.shards), "each topic has its shards, and no other shard exists"
    load: dict[int, int] = {}
    led: dict[int, int] = {}
    for key, entry in state.shards.items():
        _check_shard(key, entry)
        for node_id, weight in weights_of(entry.last):
            load[node_id] = load.get(node_id, 0) + weight
            led[node_id] = led.get(node_id, 0) + (weight == LEADER_WEIGHT)
    assert load == {node_id: weight for node_id, weight in state.load.items() if weight}, "load counts active replicas"
    assert all(state.led.get(node_id, 0) == led.get(node_id, 0) for node_id in state.led | led), "and leaders"
    unsettled = {one.key for entry in state.shards.values() for one in entry.segments.values() if is_unsettled(one)}
    assert set(state.unsettled) == unsettled, "segments that several nodes decide about are known as such"
    for mount in state.mounts.values():
        _check_mount(state, mount)
    for rule in state.rules:
        check_rule(rule)
    for name, credential in state.credentials.items():
        assert name == credential.name, "a credential is listed under its own name"
        check_credential(credential)
    for entity, limits in state.quotas.items():
        assert limits != NO_LIMITS, "an entity without limits is not kept"
        check_limits(entity, limits)
    for segment_key, segment in state.deleted.items():
        assert segment.key == segment_key and segment.state is SegmentState.DELETED and segment.deleted_ms is not None
        _check_segment(segment)


def _check_mount(state: TableState, mount: Mount) -> None:
    where = f"mount {mount.name}"
    if mount.mode is MountMode.HAND_MADE:
        assert mount.holder is None and mount.topics and "/" not in mount.name, f"{where}: it has no holder"
        assert all(0 <= one.base_offset <= one.end_offset for topic in mount.topics for one in topic.ranges), where
        return
    lock = state.locks[mount.name]
    assert lock.epoch == mount.token, f"{where}: its token is its lock's epoch"
    assert (mount.holder is None) == (mount.state is MountState.WAITING) == (lock.holder == NOBODY), (
        f"{where}: it waits while it has no holder, and only then"
    )
    if mount.holder is not None:
        entry = state.nodes[mount.holder]
        assert entry.is_alive and entry.node_epoch == mount.holder_epoch, f"{where}: its holder lives"
        assert lock.holder.startswith(f"{life_name(mount.holder, mount.holder_epoch)}/"), f"{where}: as its lock says"


def _check_shard(key: ShardKey, entry: ShardEntry) -> None:
    where = f"shard {key.shard} of topic {key.topic_id}"
    epochs = range(entry.first_epoch, entry.next_epoch)
    assert entry.segments.keys() == set(epochs), f"{where}: epochs grow by one"
    before: Segment | None = None
    for segment in (entry.segments[epoch] for epoch in epochs):
        assert segment.key.shard_key == key
        if before is not None:
            assert before.end_offset == segment.base_offset, f"{where}: segments are contiguous"
            assert before.state in (SegmentState.SEALING, SegmentState.SEALED), f"{where}: only the last one is ACTIVE"
        _check_segment(segment)
        before = segment
    assert before is not None and before.state is SegmentState.ACTIVE, f"{where}: the last segment is ACTIVE"
    oldest = entry.segments[entry.first_epoch]
    assert oldest.base_offset <= entry.log_start_offset, f"{where}: the log start has a segment"


def _check_segment(segment: Segment) -> None:
    where = describe_segment(segment.key)
    is_open = segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)
    is_led = is_open and not segment.is_fenced
    assert is_led == (segment.leader is not None), (
        f"{where}: it has a leader while ACTIVE or SEALING, until it is fenced"
    )
    assert segment.fence in (0, segment.epoch + 1), f"{where}: a fence is its own"
    if is_open:
        assert segment.isr and set(segment.isr) <= set(segment.replicas), f"{where}: ISR {segment.isr}"
        assert len(set(segment.replicas)) == len(segment.replicas), f"{where}: each replica once"
        assert not segment.is_direct or len(segment.replicas) == 1, f"{where}: a Direct one has one replica"
    if is_led:
        assert segment.leader in segment.isr, f"{where}: ISR {segment.isr}"
    if segment.is_direct and segment.state is SegmentState.SEALING:
        assert segment.committed_end == segment.end_offset or segment.is_fenced, (
            f"{where}: what was acknowledged of a Direct one is in the object store"
        )
    _check_handover(segment)
    if segment.state is SegmentState.ACTIVE:
        assert segment.end_offset is None, f"{where}: ACTIVE has no end"
    if segment.state in (SegmentState.SEALING, SegmentState.SEALED):
        assert segment.end_offset is not None and segment.end_offset >= segment.base_offset, f"{where}: it has an end"
    if segment.state is SegmentState.SEALED:
        assert segment.seal is not None and segment.seal.end_offset == segment.end_offset, (
            f"{where}: SEALED has a record"
        )
        assert set(segment.seal.replicas) <= set(segment.replicas), f"{where}: replicas proved it"
    remote = segment.remote
    expected = segment.base_offset
    for part in remote.parts:
        assert part.base_offset == expected < part.end_offset, f"{where}: parts are contiguous"
        expected = part.end_offset
    match remote.state:
        case RemoteState.NONE:
            assert not remote.parts and remote.commit_offset == NO_COMMIT, f"{where}: nothing is remote"
        case RemoteState.PARTIAL:
            assert remote.parts and remote.commit_offset == expected, f"{where}: parts end at the commit offset"
            assert remote.size_bytes == sum(part.size_bytes for part in remote.parts), f"{where}: its parts' bytes"
            assert segment.end_offset is None or expected <= segment.end_offset, (
                f"{where}: commit offset within its end"
            )
        case RemoteState.COMPLETE:
            assert not remote.parts and remote.manifest_key and remote.commit_offset == segment.end_offset, where
        case _:
            assert_never(remote.state)


def _check_handover(segment: Segment) -> None:
    where, handed = describe_segment(segment.key), segment.handed
    assert segment.handover is None or segment.handover != NO_HANDOVER, f"{where}: nothing is kept as nothing"
    if handed.prepared is not None:
        leader, replicas, policy = handed.prepared
        assert segment.state is SegmentState.ACTIVE, f"{where}: a successor is prepared before the end"
        assert leader in replicas and len(set(replicas)) == len(replicas), f"{where}: prepared {handed.prepared}"
        assert policy is not StoragePolicy.DIRECT or len(replicas) == 1, f"{where}: prepared {handed.prepared}"
    assert segment.state is SegmentState.ACTIVE or not handed.is_roll_asked, f"{where}: only what is written to can end"
    is_recovering = segment.is_fenced and segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)
    assert is_recovering or not handed.votes, f"{where}: promises are a recovery's"
    doubted = {doubt.node_id for doubt in handed.doubts}
    voted = {vote.node_id for vote in handed.votes}
    reported = {report.node_id for report in handed.reports}
    assert (len(doubted), len(voted), len(reported)) == (len(handed.doubts), len(handed.votes), len(handed.reports)), (
        f"{where}: one entry per replica"
    )
    assert doubted | voted <= {*segment.replicas}, f"{where}: only replicas are asked"
    assert not doubted & {*segment.isr} or (len(segment.isr) == 1 and segment.leader is None), (
        f"{where}: who is in doubt is in the ISR only as the last one, and leads nothing"
    )
    if handed.source is not None:
        assert segment.state is SegmentState.SEALING and segment.is_fenced, f"{where}: a source has a known end"
        assert handed.source in segment.replicas, f"{where}: the source is a replica"
    if segment.state is SegmentState.ACTIVE:
        assert not handed.reports, f"{where}: nothing ends before its end is known"
        assert all(
            gap.base_offset == gap.end_offset and gap.reason is GapReason.RESTARTED for gap in handed.given_up
        ), f"{where}: nothing is given up before its end is known; that its only replica lost some cannot be ruled out"
    if segment.state is SegmentState.SEALED:
        assert not handed.doubts, f"{where}: what is proved is in no doubt"
        assert not reported & {*segment.replicas}, f"{where}: who differs is gone"
    for gap in handed.given_up:
        assert segment.base_offset <= gap.base_offset <= gap.end_offset, f"{where}: a range of its own"
    assert len({gap.reason for gap in handed.given_up}) == len(handed.given_up), f"{where}: one range per reason"
