"""The meta service's stand-in: the real shard table behind the network, its records in a store that syncs before it
answers, and a watch that says what changed.

A restart loads the table from its records. A watcher asks for the changes after its own version; the service answers
at once, or as soon as there is a change. A watcher that is too far behind gets the whole table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stratalog.machines.copies.copy_repair import Plan, Presence, plan_moves
from stratalog.machines.copies.recovery_patience import CHECKS_PER_PATIENCE, RecoveryPatience
from stratalog.machines.plans.node_leases import NodeLeases
from stratalog.machines.plans.retirement_input import is_tiered
from stratalog.machines.table.nodes import is_process_over
from stratalog.machines.table.records import TableHeader, TableWrite
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.table_commands import Command, MoveReplicas, RegisterNode
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet, Life, NodeChanged, SegmentChanged, SegmentPurged, Snapshot, Vitals
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.stored import encoding
from stratalog_sim.environment.process import Process, Request

LEASE_MS = 1_000
STALL_MS = 1_000
"""A node's disk counts as stuck after this time without progress."""
PATIENCE_MS = 600
"""How long a recovery waits for a replica that lives and does not promise."""
REPLACE_AFTER_MS = 1_200
"""A node that is away for this long is replaced as a replica."""
_REPAIRS_MS = 300
_KEPT_CHANGES = 60
_CHECKED_EVERY = 32
"""The whole table is checked once in this number of changes: a check costs as much as all other work together."""


@dataclass(frozen=True, slots=True)
class Perform:
    command: Command[Any]

    def __str__(self) -> str:
        return f"{self.command}"


@dataclass(frozen=True, slots=True)
class Watch:
    """What came after `version`? -1: everything."""

    version: int

    def __str__(self) -> str:
        return f"watch from {self.version}"


@dataclass(frozen=True, slots=True)
class ReadSegment:
    """As it is now."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class ReadVersion:
    """Of the table, as it is now."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    life: Life
    vitals: Vitals | None = None
    can_write: bool = True


@dataclass(frozen=True, slots=True)
class Deleted:
    """Which segments wait for their purge?"""


@dataclass(slots=True)
class MetaStore:
    """What survives the service."""

    items: dict[bytes, bytes] = field(default_factory=dict)
    unfolded: list[TableWrite] = field(default_factory=list)
    last_id: int = 0

    def load(self) -> ShardTable:
        for key, value in encoding.encode(self.unfolded):
            if value is None:
                self.items.pop(key, None)
            else:
                self.items[key] = value
        self.unfolded.clear()
        table = ShardTable.load(encoding.decode(sorted(self.items.items()), "simulated"), "simulated")
        return ShardTable.empty(TableHeader("sim", 0, 1)) if table is None else table


@dataclass
class Meta(Process):
    store: MetaStore = field(default_factory=MetaStore)
    clock_offset_ms: int = 0
    on_applied: Callable[[Command[Any], Any, list[Segment]], None] = lambda *_: None
    tell: Callable[..., None] = print

    def __post_init__(self) -> None:
        self.table = self.store.load()
        self._changes: list[ChangeSet] = []
        self._watchers: list[tuple[str, Request]] = []
        self._leases = NodeLeases(LEASE_MS, self.table.snapshot().nodes, self.scheduler.now_ms)
        self._presence = Presence(REPLACE_AFTER_MS, self.table.snapshot().nodes, self.scheduler.now_ms)
        self._looked_at: tuple[int, frozenset[int], frozenset[int], frozenset[Life]] | None = None
        segments = [self.table.state.segment(key) for key in self.table.state.unsettled]
        self._patience = RecoveryPatience(PATIENCE_MS, self.table.snapshot().nodes, segments, self.scheduler.now_ms)
        self.scheduler.after(self._leases.check_every_ms, self, self._look_at_leases)
        self.scheduler.after(PATIENCE_MS // CHECKS_PER_PATIENCE, self, self._look_at_recoveries)
        self.scheduler.after(_REPAIRS_MS, self, self._look_at_copies)
        self.vitals: dict[int, Vitals] = {}
        """As each node told them last."""

    @property
    def clock_ms(self) -> int:
        """By which records have their times."""
        return 1_000_000 + self.scheduler.now_ms + self.clock_offset_ms

    def is_tiered(self, topic: Topic) -> bool:
        return is_tiered(topic, self.vitals.values())

    def asked(self, sender: str, request: Request) -> None:
        match request.what:
            case Perform(command):
                self._perform(sender, request, command)
            case Watch(version):
                if version >= self.table.version:
                    self._watchers = [one for one in self._watchers if one[0] != sender]
                    self._watchers.append((sender, request))
                else:
                    self._tell_changes(sender, request, version)
            case ReadSegment(key):
                self.reply(sender, request, self.table.state.find_segment(key))
            case ReadVersion():
                self.reply(sender, request, self.table.version)
            case Heartbeat(life, vitals, can_write):
                try:
                    self._leases.heartbeat_received(life, self.scheduler.now_ms, vitals=vitals, can_write=can_write)
                    if vitals is not None:
                        self.vitals[life.node_id] = vitals
                    self.reply(sender, request, None)
                except StratalogError as refusal:
                    self.reply(sender, request, refusal)
            case Deleted():
                self.reply(sender, request, tuple(self.table.deleted_segments()))
            case _:
                raise AssertionError(f"{request.what} is nothing for a meta service")

    def do(self, command: Command[Any]) -> Any:
        """For itself. None where the table refuses it."""
        return self._perform("meta", Request(0, command), command)

    def _perform(self, sender: str, request: Request, command: Command[Any]) -> Any:
        self.store.last_id += 1
        try:
            if isinstance(command, RegisterNode):
                known = self.table.state.nodes.get(command.node.node_id)
                is_over = is_process_over(known, command)
                self._leases.check_registration(command.node, self.scheduler.now_ms, is_process_over=is_over)
            applied = self.table.apply(command, self.clock_ms, UUID(int=self.store.last_id))
        except StratalogError as refusal:
            self.tell("meta refuses", sender, ":", command, refusal)
            self.reply(sender, request, refusal)
            return None
        if self.table.version % _CHECKED_EVERY == 0:
            self.table.check_invariants()
        self.store.unfolded += applied.writes
        if applied.change_set is not None:
            self.tell(f"{sender}", command)
            changed = [one.segment for one in applied.change_set.changes if isinstance(one, SegmentChanged)]
            for segment in changed:
                self.tell("      now", segment)
            self._changes = [*self._changes[1 - _KEPT_CHANGES :], applied.change_set]
            for change in applied.change_set.changes:
                if isinstance(change, NodeChanged):
                    self._leases.node_changed(change.node, self.scheduler.now_ms)
                    self._presence.node_changed(change.node, self.scheduler.now_ms)
                    self._patience.node_changed(change.node, self.scheduler.now_ms)
                elif isinstance(change, SegmentChanged):
                    self._patience.segment_changed(change.segment, self.scheduler.now_ms)
                elif isinstance(change, SegmentPurged):
                    self._patience.segment_gone(change.key)
            self.on_applied(command, applied.result, changed)
            if not self.is_alive:
                return None  # it died after the change, before any watcher or caller got an answer
            watchers, self._watchers = self._watchers, []
            for who, watch in watchers:
                self._tell_changes(who, watch, watch.what.version)
        self.reply(sender, request, applied.result)
        return applied.result

    def _look_at_leases(self) -> None:
        due = self._leases.due(self.scheduler.now_ms)
        if due is not None:
            self.do(due)
        self.scheduler.after(self._leases.check_every_ms, self, self._look_at_leases)

    def _look_at_recoveries(self) -> None:
        due = self._patience.due(self.scheduler.now_ms)
        if due is not None:
            self.do(due)
        self.scheduler.after(PATIENCE_MS // CHECKS_PER_PATIENCE, self, self._look_at_recoveries)

    def _look_at_copies(self) -> None:
        """Copies that are missing are asked for, and those that are too many let go of."""
        now_ms = self.scheduler.now_ms
        seen = (
            self.table.version,
            self._presence.away(now_ms),
            self._presence.steady(now_ms),
            self._leases.started(),
        )
        if seen != self._looked_at and len(self.table.state.nodes) > 1:
            self._looked_at = seen
            plan = self._planned(*seen[1:])
            if plan.moves:
                self.do(MoveReplicas(tuple(plan.moves)))
        self.scheduler.after(_REPAIRS_MS, self, self._look_at_copies)

    def _tell_changes(self, watcher: str, request: Request, version: int) -> None:
        changes = [change for change in self._changes if change.version > version]
        is_whole = bool(changes) and changes[0].version == version + 1 and version >= 0
        news: tuple[ChangeSet, ...] | Snapshot = tuple(changes) if is_whole else self.table.snapshot()
        self.reply(watcher, request, news)

    def _planned(self, away: frozenset[int], steady: frozenset[int], started: frozenset[Life]) -> Plan:
        steps = plan_moves(self.table.snapshot(), away, steady, self.is_tiered, started)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                plan: Plan = done.value
                return plan
