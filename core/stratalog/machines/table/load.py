"""The shard table's state from stored records.

Records that do not fit together are refused with their place, never silently repaired: a shard without segments, a gap
between them, a segment without its shard.
Cost: about 2 us per record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from stratalog.machines.copies.placement import LEADER_WEIGHT, weights_of
from stratalog.machines.table.history import changes_kept
from stratalog.machines.table.records import NodeEntry, NotedChanges, PurgedTopic, ShardRow, StoredRecord, TableHeader
from stratalog.machines.table.state import ShardEntry, TableState, is_unsettled
from stratalog.model.errors import Corrupt
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Lock
from stratalog.model.mounts import Mount
from stratalog.model.quotas import EntityQuotas
from stratalog.model.rights import Rule
from stratalog.model.scram import UserCredential
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Topic, undotted_name


def load_state(records: Iterable[StoredRecord], source: str) -> TableState | None:
    """The state that the records make; None when there is none. Raises Corrupt for records that do not fit together."""
    state: TableState | None = None
    rows: list[ShardRow] = []
    noted: list[NotedChanges] = []
    living: dict[ShardKey, dict[int, Segment]] = {}
    for record in records:
        if isinstance(record, TableHeader):
            state = TableState(record)
            continue
        if state is None:
            raise Corrupt("metadata lacks its header record", source=source, position=0)
        match record:
            case Segment():
                if record.state is SegmentState.DELETED:
                    state.deleted[record.key] = record
                else:
                    living.setdefault(record.key.shard_key, {})[record.epoch] = record
            case ShardRow():
                rows.append(record)
            case Topic():
                state.topics[record.topic_id] = record
                state.topic_ids[record.name] = record.topic_id
                if (undotted := undotted_name(record.name)) is not None:
                    state.undotted[undotted] = (*state.undotted.get(undotted, ()), record.name)
            case NotedChanges():
                noted.append(record)
            case PurgedTopic():
                state.purged_topics[record.topic_id] = record
            case Lock():
                state.locks[record.name] = record
            case Mount():
                state.mounts[record.name] = record
            case Rule():
                state.rules[record] = None
            case UserCredential():
                state.credentials[record.name] = record
            case EntityQuotas():
                state.quotas[record.entity] = record.limits
            case NodeEntry():
                state.nodes[record.info.node_id] = record
            case _:
                assert_never(record)
    if state is not None:
        _place_shards(state, rows, living, source)
        state.change_sets = changes_kept(state, noted)
    return state


def _place_shards(
    state: TableState, rows: list[ShardRow], living: dict[ShardKey, dict[int, Segment]], source: str
) -> None:
    for row in rows:
        segments = living.pop(row.key, None)
        topic = state.topics.get(row.key.topic_id)
        where = f"shard {row.key.shard} of topic {row.key.topic_id}"
        if not segments or topic is None or row.key.shard >= topic.shard_count:
            raise Corrupt(f"{where} lacks its segments or its topic", source=source, position=0)
        first_epoch, last_epoch = min(segments), max(segments)
        if last_epoch - first_epoch + 1 != len(segments) or segments[last_epoch].state is not SegmentState.ACTIVE:
            raise Corrupt(f"{where} has gaps between its segments or none to write to", source=source, position=0)
        state.shards[row.key] = ShardEntry(row.key, row.log_start_offset, first_epoch, last_epoch + 1, segments)
        for node_id, weight in weights_of(segments[last_epoch]):
            state.load[node_id] = state.load.get(node_id, 0) + weight
            if weight == LEADER_WEIGHT:
                state.led[node_id] = state.led.get(node_id, 0) + 1
        state.unsettled.update((segment.key, None) for segment in segments.values() if is_unsettled(segment))
    if living:
        key = next(iter(living))
        raise Corrupt(
            f"segments of shard {key.shard} of topic {key.topic_id} lack their shard",
            source=source,
            position=0,
        )
