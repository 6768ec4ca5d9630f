"""The meta service's state as a pure machine: topics, shards, segments, nodes, locks, rights.

`apply` performs one command or refuses it by raising a kind of `Rejected` (or `Unavailable`), with nothing changed.
What it did is in the answer: the result, the change set for watchers, the writes for the store. Until the store has
synced them the caller can `undo`, newest first, so memory never shows readers what a restart would not find.

The caller must bring time (`now_ms` may stay the same, and must not go back far, because of locks) and, with each
command, an id that was never given before, and must read only between transactions it keeps.
Invariants: `check_invariants`.
Cost: O(1) per record changed; `snapshot` shares all records and rebuilds only shards that changed since the last one.
Source: docs/design.md section 3; docs/meta.md has the table of transitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_never, cast
from uuid import UUID

from stratalog.machines.table import lives as table_lives
from stratalog.machines.table import locks as table_locks
from stratalog.machines.table import mount_ends as table_mount_ends
from stratalog.machines.table import mounts as table_mounts
from stratalog.machines.table import moves as table_moves
from stratalog.machines.table import nodes as table_nodes
from stratalog.machines.table import recovery as table_recovery
from stratalog.machines.table import remote as table_remote
from stratalog.machines.table import retirement as table_retirement
from stratalog.machines.table import rights as table_rights
from stratalog.machines.table import rolls as table_rolls
from stratalog.machines.table import seals as table_seals
from stratalog.machines.table import segments as table_segments
from stratalog.machines.table import topics as table_topics
from stratalog.machines.table import user_mounts as table_user_mounts
from stratalog.machines.table.invariants import check_invariants
from stratalog.machines.table.load import load_state
from stratalog.machines.table.records import StoredRecord, TableHeader, TableWrite
from stratalog.machines.table.state import Steps, TableState, TableTransaction
from stratalog.model.commands import mount_commands, rights_commands
from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.mount_commands import MountCommand
from stratalog.model.commands.retirement_commands import RetirementCommand
from stratalog.model.commands.rights_commands import RightsCommand, RightsResult
from stratalog.model.commands.table_commands import Command, TableCommand, TableResult
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, Snapshot
from stratalog.model.quotas import EntityQuotas
from stratalog.model.segment import Segment
from stratalog.model.topic import Shard, Topic

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Applied(Generic[R]):
    """What one command did. `change_set` is None when readers cannot see it (locks, ids, a repetition)."""

    result: R
    change_set: ChangeSet | None
    writes: tuple[TableWrite, ...]
    transaction: TableTransaction


class ShardTable:
    """Topics, shards, segments, nodes and locks of one cluster."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self._snapshot: Snapshot | None = None

    @property
    def min_in_sync(self) -> int:
        """The processes' `min.insync.replicas`, for topics that do not say otherwise. Not stored: whoever loads a table
        sets it."""
        return self._state.min_in_sync

    @min_in_sync.setter
    def min_in_sync(self, replicas: int) -> None:
        self._state.min_in_sync = replicas

    @classmethod
    def empty(cls, header: TableHeader) -> ShardTable:
        """The table of a new cluster."""
        return cls(TableState(header))

    @classmethod
    def load(cls, records: Iterable[StoredRecord], source: str) -> ShardTable | None:
        """The table as it was stored; None when the store is empty. Raises Corrupt, naming `source`, for records that
        do not fit together."""
        state = load_state(records, source)
        return None if state is None else cls(state)

    # Changing ---------------------------------------------------------------------------------------------------
    def apply(self, command: Command[R], now_ms: int, new_id: UUID) -> Applied[R]:
        """Perform a command, or raise with nothing changed."""
        steps = self.apply_in_steps(command, now_ms, new_id)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                applied: Applied[R] = done.value
                return applied

    def apply_in_steps(self, command: Command[R], now_ms: int, new_id: UUID) -> Steps[Applied[R]]:
        """The same in steps, for commands that change thousands of records: nothing else may be read or applied
        between two of them. One that is given up midway (`close`) has changed nothing."""
        transaction = TableTransaction(self._state, now_ms, new_id)
        try:
            # There are no other commands than these, and each is answered as it says itself.
            result = cast("R", (yield from _dispatch(transaction, cast("TableCommand", command))))
        except BaseException:
            transaction.undo()
            raise
        transaction.close()
        change_set = None
        if transaction.changes:
            change_set = ChangeSet(self._state.header.version, tuple(transaction.changes))
            self._snapshot = None
        return Applied(result, change_set, tuple(transaction.writes), transaction)

    def undo(self, applied: Applied[Any]) -> None:
        """Take back the newest command that was not taken back yet."""
        applied.transaction.undo()
        self._snapshot = None

    # Reading ----------------------------------------------------------------------------------------------------
    @property
    def version(self) -> int:
        return self._state.header.version

    @property
    def cluster_id(self) -> str:
        return self._state.header.cluster_id

    @property
    def state(self) -> TableState:
        """For readers of single records; only `apply` changes it."""
        return self._state

    def take_change_sets(self) -> tuple[ChangeSet, ...]:
        """The newest change sets up to the present version, as a loaded table found them; given once."""
        sets, self._state.change_sets = self._state.change_sets, ()
        return sets

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            state = self._state
            self._snapshot = Snapshot(
                state.header.version,
                tuple(state.topics.values()),
                tuple([state.view(key) for key in state.shards]),
                tuple(entry.node for entry in state.nodes.values()),
                tuple(state.mounts.values()),
                tuple(state.rules),
                tuple(state.credentials.values()),
                tuple([EntityQuotas(entity, limits) for entity, limits in state.quotas.items()]),
            )
        return self._snapshot

    def topic(self, topic_id: UUID) -> Topic:
        """Raises NotFound."""
        return self._state.topic(topic_id)

    def shard(self, key: ShardKey) -> Shard:
        """Raises NotFound."""
        return self._state.view(key)

    def segment(self, key: SegmentKey) -> Segment:
        """Living or DELETED. Raises NotFound."""
        return self._state.segment(key)

    def deleted_segments(self) -> list[Segment]:
        return list(self._state.deleted.values())

    def purged_topics(self) -> frozenset[UUID]:
        return frozenset(self._state.purged_topics)

    def check_invariants(self) -> None:
        """Raise AssertionError for a state that no sequence of commands may reach. Cost: O(everything)."""
        check_invariants(self._state)


def _dispatch(tx: TableTransaction, command: TableCommand) -> Steps[TableResult]:
    if isinstance(command, commands.NodeCommand):
        table_nodes.check_life(tx, command.caller)
    if isinstance(command, RetirementCommand):
        return (yield from table_retirement.perform(tx, command))
    if isinstance(command, RightsCommand):
        return (yield from _dispatch_rights(tx, command))
    match command:
        case commands.RegisterNode():
            return (yield from table_nodes.register_node(tx, command))
        case commands.NoteLives():
            yield from table_nodes.note_lives(tx, command)
            return None
        case commands.ContinueWithout():
            yield from table_lives.continue_without(tx, command)
            return None
        case commands.MoveReplicas():
            yield from table_moves.move_replicas(tx, command)
            return None
        case commands.CreateTopic():
            return (yield from table_topics.create_topic(tx, command))
        case commands.DeleteTopic():
            yield from table_topics.delete_topic(tx, command)
            return None
        case commands.AddShards():
            return (yield from table_topics.add_shards(tx, command))
        case commands.WidenTopic():
            return table_topics.widen_topic(tx, command)
        case commands.AlterTopic():
            return (yield from table_topics.alter_topic(tx, command))
        case commands.AdvanceLogStart():
            return (yield from table_topics.advance_log_start(tx, command))
        case commands.PrepareSegment() | commands.RollSegment() | commands.SealTopic() | commands.RollElsewhere():
            return (yield from table_rolls.perform(tx, command))
        case commands.SealSegment():
            return (yield from table_seals.seal_segment(tx, command))
        case commands.ReportReplica():
            return (yield from table_seals.report_replica(tx, command))
        case commands.ProposeIsr():
            return table_segments.propose_isr(tx, command)
        case commands.BeginRecovery():
            return table_recovery.begin_recovery(tx, command)
        case commands.PromiseFence():
            return table_recovery.promise_fence(tx, command)
        case commands.SealUnclean():
            return table_recovery.seal_unclean(tx, command)
        case commands.ForgetLocal():
            yield from table_segments.forget_local(tx, command)
            return None
        case commands.ReportLostCopies():
            yield from table_segments.report_lost_copies(tx, command)
            return None
        case commands.ReportFaultyCopies():
            yield from table_lives.report_faulty_copies(tx, command)
            return None
        case commands.PurgeSegments():
            yield from table_segments.purge_segments(tx, command)
            return None
        case commands.CommitParts() | commands.CompleteRemote() | commands.ReplaceManifest() | commands.ReplaceParts():
            return (yield from table_remote.perform(tx, command))
        case commands.AcquireLock():
            return table_locks.acquire_lock(tx, command)
        case commands.ReleaseLock():
            table_locks.release_lock(tx, command)
            return None
        case commands.AllocateProducerIds():
            return table_locks.allocate_producer_ids(tx, command)
        case _:
            return (yield from _dispatch_mounts(tx, command))


def _dispatch_rights(tx: TableTransaction, command: RightsCommand) -> Steps[RightsResult]:
    match command:
        case rights_commands.CreateRules():
            return (yield from table_rights.create_rules(tx, command))
        case rights_commands.DeleteRules():
            return (yield from table_rights.delete_rules(tx, command))
        case rights_commands.AlterCredentials():
            return (yield from table_rights.alter_credentials(tx, command))
        case rights_commands.AlterQuotas():
            return (yield from table_rights.alter_quotas(tx, command))
        case _:
            assert_never(command)


def _dispatch_mounts(tx: TableTransaction, command: MountCommand) -> Steps[TableResult]:
    match command:
        case mount_commands.CreateMount():
            return (yield from table_user_mounts.create_mount(tx, command))
        case mount_commands.MountCut():
            return (yield from table_user_mounts.mount_cut(tx, command))
        case mount_commands.BeginMount():
            return table_mounts.begin_mount(tx, command)
        case mount_commands.TakeMount():
            return table_mounts.take_mount(tx, command)
        case mount_commands.DoubtMount():
            return table_mounts.doubt_mount(tx, command)
        case mount_commands.OpenVolume():
            return table_mounts.open_volume(tx, command)
        case mount_commands.CloseVolume():
            table_mounts.close_volume(tx, command)
            return None
        case mount_commands.ReleaseMount():
            table_mounts.release_mount(tx, command)
            return None
        case mount_commands.MoveMount():
            return table_mounts.move_mount(tx, command)
        case mount_commands.EndMount():
            yield from table_mount_ends.end_mount(tx, command)
            return None
        case _:
            assert_never(command)
