"""The shard table's durable content, as the writes that restore it: for a snapshot, and for a rebuild. `Captured` is
taken at one version and shares the table's immutable records, so it can be written out while the table changes. It
leaves out the newest change sets, because a reader of a snapshot starts from it, and the credentials of users and the
tokens of lives, because who can read the bucket must not get them. Cost: capturing is O(shards), and
O(segments) for shards that changed since the last capture; the writes are made one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from stratalog.machines.table import records as table_records
from stratalog.machines.table.state import TableState
from stratalog.model.metadata import Lock
from stratalog.model.mounts import Mount
from stratalog.model.quotas import EntityQuotas
from stratalog.model.rights import Rule
from stratalog.model.scram import UserCredential
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic

SingleRecord: TypeAlias = (
    table_records.NodeEntry | Lock | Mount | Topic | table_records.PurgedTopic | Rule | EntityQuotas
)


@dataclass(frozen=True, slots=True)
class Captured:
    """Everything at one version, but for credentials and tokens."""

    header: table_records.TableHeader
    single: tuple[SingleRecord, ...]
    shards: tuple[Shard, ...]
    deleted: tuple[Segment, ...]

    def records(self) -> Iterator[table_records.StoredRecord]:
        """The header comes first."""
        yield self.header
        yield from self.single
        for shard in self.shards:
            yield table_records.ShardRow(shard.key, shard.log_start_offset)
            yield from shard.segments
        yield from self.deleted


def capture(state: TableState) -> Captured:
    single: tuple[SingleRecord, ...] = (
        *(replace(node, token=0) for node in state.nodes.values()),
        *state.locks.values(),
        *state.mounts.values(),
        *state.topics.values(),
        *state.purged_topics.values(),
        *state.rules,
        *(EntityQuotas(entity, limits) for entity, limits in state.quotas.items()),
    )
    return Captured(state.header, single, tuple(map(state.view, state.shards)), tuple(state.deleted.values()))


def writes_of(records: Iterable[table_records.StoredRecord]) -> Iterator[table_records.TableWrite]:
    """What puts these records into an empty store, in their order."""
    for record in records:
        match record:
            case table_records.TableHeader():
                yield table_records.PutHeader(record)
            case table_records.NodeEntry():
                yield table_records.PutNode(record)
            case Lock():
                yield table_records.PutLock(record)
            case Mount():
                yield table_records.PutMount(record)
            case Rule():
                yield table_records.PutRule(record)
            case UserCredential():
                yield table_records.PutCredential(record)
            case EntityQuotas():
                yield table_records.PutQuotas(record)
            case Topic():
                yield table_records.PutTopic(record)
            case table_records.PurgedTopic():
                yield table_records.PutPurgedTopic(record)
            case table_records.ShardRow():
                yield table_records.PutShard(record)
            case Segment():
                yield table_records.PutSegmentHead(record)
                if record.seal is not None:
                    yield table_records.PutSeal(record.key, record.seal)
                for part in record.remote.parts:
                    yield table_records.PutPart(record.key, part)
            case table_records.NotedChanges():
                pass
            case _:
                assert_never(record)
