"""What is always true of the shard table, checked in full: for tests, simulations and after a load in doubt."""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.internal_topics import is_reserved
from stratalog.machines.placement import FOLLOWER_WEIGHT, LEADER_WEIGHT
from stratalog.machines.table_remote import NO_COMMIT
from stratalog.machines.table_state import ShardEntry, TableState, describe_segment
from stratalog.model.ids import ShardKey
from stratalog.model.segment import RemoteState, Segment, SegmentState


def check_invariants(state: TableState) -> None:
    """Raise AssertionError for a state that no sequence of commands may reach. Cost: O(everything)."""
    assert {topic.name: topic_id for topic_id, topic in state.topics.items()} == state.topic_ids, "names lead to topics"
    assert all(topic.is_internal == is_reserved(topic.name) for topic in state.topics.values()), (
        "internal by their names"
    )
    wanted = {ShardKey(topic.topic_id, shard) for topic in state.topics.values() for shard in range(topic.shard_count)}
    assert wanted == set(state.shards), "each topic has its shards, and no other shard exists"
    load: dict[int, int] = {}
    for key, entry in state.shards.items():
        _check_shard(key, entry)
        for node_id in entry.last.replicas:
            weight = LEADER_WEIGHT if node_id == entry.last.leader else FOLLOWER_WEIGHT
            load[node_id] = load.get(node_id, 0) + weight
    assert load == {node_id: weight for node_id, weight in state.load.items() if weight}, "load counts active replicas"
    for segment_key, segment in state.deleted.items():
        assert segment.key == segment_key and segment.state is SegmentState.DELETED and segment.deleted_ms is not None
        _check_segment(segment)


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
    is_led = segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)
    assert is_led == (segment.leader is not None), f"{where}: it has a leader while ACTIVE or SEALING"
    if is_led:
        assert segment.leader in segment.isr and set(segment.isr) <= set(segment.replicas), (
            f"{where}: ISR {segment.isr}"
        )
    if segment.state is SegmentState.ACTIVE:
        assert segment.end_offset is None, f"{where}: ACTIVE has no end"
    if segment.state in (SegmentState.SEALING, SegmentState.SEALED):
        assert segment.end_offset is not None and segment.end_offset >= segment.base_offset, f"{where}: it has an end"
    if segment.state is SegmentState.SEALED:
        assert segment.seal is not None and segment.seal.end_offset == segment.end_offset, (
            f"{where}: SEALED has a record"
        )
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
            assert segment.end_offset is None or expected <= segment.end_offset, (
                f"{where}: commit offset within its end"
            )
        case RemoteState.COMPLETE:
            assert not remote.parts and remote.manifest_key and remote.commit_offset == segment.end_offset, where
        case _:
            assert_never(remote.state)
