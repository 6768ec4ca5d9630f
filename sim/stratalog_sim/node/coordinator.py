"""Groups on a node: the shell of the real group machines, whose log is the shard of the internal topic that this node
leads. In the simulator it takes the place of `storage_node/stratalog_node/groups`.

One append is under way at a time; the next one takes all entries that were submitted meanwhile. A member gets no
result before the append is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, assert_never

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.machines.groups import group_events
from stratalog.machines.groups.group import Group
from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.model.append import AppendFailure
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import StratalogError
from stratalog.model.groups.group import CommittedOffset, GroupError, GroupRecord, MemberProtocol
from stratalog.model.ids import ShardKey
from stratalog_sim.environment.group_entries import (
    GroupEntry,
    LogEntry,
    MemberEntry,
    NothingEntry,
    OffsetEntry,
    OpenedEntry,
    ReplayedGroup,
    ReplayedLog,
)
from stratalog_sim.environment.process import Ask, Request, Sleep, Task
from stratalog_sim.node.group_snapshot import GroupSnapshot, LiveKey, is_due
from stratalog_sim.node.serving import Fetch
from stratalog_sim.node.shard import LeadingNode, Offer
from stratalog_sim.service.meta import LEASE_MS

LIMITS = group_events.GroupLimits(
    min_session_timeout_ms=100, initial_rebalance_delay_ms=60, new_member_join_timeout_ms=1_500
)
SESSION_MS = 900
_RETRY_MS = 60
_READ_MS = 300
_FLUSH_MS = 8
_ENTRY_BYTES = 10
_PROTOCOL = MemberProtocol("range", b"")
Done = Callable[[GroupError], None]


# What members ask ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GroupAsk:
    group_id: str


@dataclass(frozen=True, slots=True)
class Join(GroupAsk):
    member_id: str

    def __str__(self) -> str:
        return f"joins {self.group_id} as {self.member_id or 'somebody new'}"


@dataclass(frozen=True, slots=True)
class Sync(GroupAsk):
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...]

    def __str__(self) -> str:
        return f"syncs as {self.member_id} in generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Beat(GroupAsk):
    member_id: str
    generation: int

    def __str__(self) -> str:
        return f"heartbeat of {self.member_id}"


@dataclass(frozen=True, slots=True)
class Commit(GroupAsk):
    member_id: str
    generation: int
    shard: ShardKey
    offset: int
    number: int
    """No other commit has it."""

    def __str__(self) -> str:
        return f"commit {self.number}: {self.offset} of shard {self.shard.shard} in generation {self.generation}"


@dataclass(frozen=True, slots=True)
class Committed(GroupAsk):
    """Which offset is committed?"""

    shard: ShardKey

    def __str__(self) -> str:
        return f"asks what is committed of shard {self.shard.shard}"


@dataclass(slots=True)
class _Hosted:
    machine: Group
    durable: GroupRecord | None = None
    """As the log has it."""
    offsets: dict[ShardKey, CommittedOffset] = field(default_factory=dict)


class GroupShard:
    """The groups of one shard of the log, while this node leads it."""

    def __init__(self, node: LeadingNode, key: ShardKey) -> None:
        self._node = node
        self.key = key
        self.is_ready = False
        self.is_closed = False
        self.groups: dict[str, _Hosted] = {}
        self.proven_ms = -1_000_000
        self._pending: list[tuple[LogEntry, Done]] = []
        self._is_writing = False
        self._is_proving = False
        self._opened_at: int | None = None
        self._waiters: dict[int, tuple[str, Request]] = {}
        self._last_waiter = 0
        self._snapshot: GroupSnapshot | None = None
        self._since_snapshot = self._last_snapshot = 0

    # The log --------------------------------------------------------------------------------------------------------
    def submit(self, entry: LogEntry, done: Done) -> None:
        if self.is_closed:
            done(GroupError.NOT_COORDINATOR)
            return
        self._pending.append((entry, done))
        if not self._is_writing:
            self._is_writing = True
            self._node.scheduler.after(0, self._node, self._write)

    def _write(self) -> None:
        taken, self._pending = self._pending, []
        snapshot = self._snapshot
        piece = snapshot.next_slice() if snapshot is not None else []
        entries = (*piece, *(entry for entry, _ in taken))

        def answered(answers: tuple[Any, ...]) -> None:
            is_durable = isinstance(answers[0], int)
            if is_durable:
                self._opened_at = answers[0] if self._opened_at is None else self._opened_at
            for _, done in taken:
                done(GroupError.NONE if is_durable else GroupError.COORDINATOR_NOT_AVAILABLE)
            if is_durable:
                self._since_snapshot += len(entries)
            if snapshot is not None:
                self._go_on_with(snapshot, answers[0], len(entries))
            elif self.is_ready and is_due(self._since_snapshot, self._last_snapshot):
                self._begin_snapshot()
            if (self._pending or self._snapshot is not None) and not self.is_closed:
                self._node.scheduler.after(0, self._node, self._write)
            else:
                self._is_writing = False

        append_entries(self._node, self.key, entries, answered)

    # Snapshots ------------------------------------------------------------------------------------------------------
    def _begin_snapshot(self) -> None:
        keys: list[LiveKey] = []
        for group_id, hosted in self.groups.items():
            keys += [(group_id, None), *((group_id, shard) for shard in hosted.offsets)]
        self._snapshot = GroupSnapshot(self._node.network.next_number(), keys, self._live_entry)

    def _live_entry(self, key: LiveKey) -> LogEntry | None:
        group_id, shard = key
        hosted = self.groups[group_id]
        if shard is not None:
            return OffsetEntry(group_id, shard, hosted.offsets[shard], is_restated=True)
        return GroupEntry(group_id, hosted.durable) if hosted.durable is not None else None

    def _go_on_with(self, snapshot: GroupSnapshot, appended_at: Any, entries: int) -> None:
        if not isinstance(appended_at, int) or self.is_closed:
            self._snapshot, self._since_snapshot = None, 0  # the next one is as far away again
            return
        snapshot.appended(appended_at, entries)
        if snapshot.is_complete:
            self._snapshot, self._since_snapshot, self._last_snapshot = None, 0, snapshot.entries
            self._node.tell(f"has a snapshot of groups from {snapshot.base_offset} on")
            self._node.spawn(self._trim(snapshot.base_offset))

    def _trim(self, offset: int) -> Task:
        """The snapshot first: a power cut may take what is not flushed, and what is trimmed stays trimmed."""
        node = self._node
        yield Sleep(_FLUSH_MS)
        files = [key for key in node.disk.files if key.shard_key == self.key]
        if self.is_closed or not all(node.disk.flush(key) for key in files):
            return
        with suppress(StratalogError):  # the next one does
            yield node.ask_meta(commands.AdvanceLogStart(self.key, offset))

    def close(self) -> None:
        self.is_closed = True
        for hosted in list(self.groups.values()):
            self.step(hosted, group_events.GroupClosed(GroupError.NOT_COORDINATOR))
        pending, self._pending = self._pending, []
        for _, done in pending:
            done(GroupError.NOT_COORDINATOR)

    def load(self) -> Task:
        """Append an opening record, and read up to it: all that was ever acknowledged lies below."""
        node = self._node
        while not self.is_closed and self._opened_at is None:
            if not self._is_writing:
                self.submit(OpenedEntry(), lambda _: None)
            yield Sleep(_RETRY_MS)
        while not self.is_closed:
            opened_at = self._opened_at
            assert opened_at is not None
            position = node.view.log_start(self.key)
            replayed = ReplayedLog(position)
            while position <= opened_at and not self.is_closed:
                try:
                    fetched = yield Ask(node.name, Fetch(self.key, position), _READ_MS)
                except StratalogError:
                    continue
                if fetched.error == "out of range" and fetched.log_start_offset > position:
                    position = fetched.log_start_offset
                    replayed = ReplayedLog(position)
                    continue
                if not fetched.batches:
                    yield Sleep(_RETRY_MS)
                for batch in fetched.batches:
                    if batch.base_offset >= position:
                        for entry in batch.entries:
                            replayed.apply(entry)
                        position = batch.end_offset
            if not self.is_closed:
                node.judge.read_group_log(node.node_id, begins_complete=replayed.begins_complete)
                self._take_over(replayed.groups)
            return

    def _take_over(self, replayed: dict[str, ReplayedGroup]) -> None:
        for group_id, one in replayed.items():
            group = Group(group_id, LIMITS, one.record, self._node.scheduler.now_ms)
            self.groups[group_id] = _Hosted(group, one.record, dict(one.offsets))
            self._wake_in_time(self.groups[group_id])
        self.is_ready = True
        self._node.tell(f"coordinates the groups of shard {self.key.shard}: {', '.join(self.groups) or 'none'}")

    # Requests -------------------------------------------------------------------------------------------------------
    def asked(self, sender: str, request: Request, ask: GroupAsk) -> None:
        if not self.is_ready:
            self._node.reply(sender, request, GroupError.COORDINATOR_LOAD_IN_PROGRESS)
            return
        hosted = self.groups.get(ask.group_id)
        if hosted is None:
            hosted = self.groups[ask.group_id] = _Hosted(Group(ask.group_id, LIMITS))
        self._last_waiter += 1
        waiter = self._last_waiter
        match ask:
            case Join():
                self._waiters[waiter] = sender, request
                self.step(hosted, self._joined(waiter, sender, ask))
            case Sync():
                self._waiters[waiter] = sender, request
                event = group_events.MemberSynced(
                    waiter, ask.member_id, None, ask.generation, None, None, ask.assignments
                )
                self.step(hosted, event)
            case Beat():
                if self._may_answer(sender, request):
                    self._waiters[waiter] = sender, request
                    self.step(hosted, group_events.HeartbeatReceived(waiter, ask.member_id, None, ask.generation))
            case Commit():
                self._commit(sender, request, hosted, ask)
            case Committed():
                if self._may_answer(sender, request):
                    self._node.reply(sender, request, (hosted.offsets.get(ask.shard),))
            case _:
                raise AssertionError(f"{ask} is nothing for a coordinator")

    def _joined(self, waiter: int, sender: str, ask: Join) -> group_events.MemberJoined:
        new_id = f"{sender}.{self._node.network.next_number()}"
        return group_events.MemberJoined(
            waiter,
            ask.member_id,
            new_id,
            None,
            sender,
            "",
            SESSION_MS,
            SESSION_MS,
            "consumer",
            (_PROTOCOL,),
            False,
            True,
        )

    def _commit(self, sender: str, request: Request, hosted: _Hosted, ask: Commit) -> None:
        now_ms = self._node.scheduler.now_ms
        refusal = hosted.machine.commit_error(ask.member_id, None, ask.generation, now_ms)
        if refusal is not GroupError.NONE:
            self._node.reply(sender, request, refusal)
            return
        committed = CommittedOffset(ask.offset, -1, str(ask.number), self._node.now_ms)

        def done(error: GroupError) -> None:
            if error is GroupError.NONE and not self.is_closed:
                hosted.offsets[ask.shard] = committed
            self._node.reply(sender, request, error)

        self.submit(OffsetEntry(ask.group_id, ask.shard, committed), done)

    # Standing -------------------------------------------------------------------------------------------------------
    def _may_answer(self, sender: str, request: Request) -> bool:
        """Whether the node may answer from memory. If another may have taken its place, it asks its replicas first."""
        if self.is_sure():
            return True
        self._prove()
        self._node.reply(sender, request, GroupError.COORDINATOR_NOT_AVAILABLE)
        return False

    def is_sure(self) -> bool:
        heard_ms = max(self._node.heard_by_service_ms, self.proven_ms)
        return self._node.scheduler.now_ms - heard_ms < LEASE_MS

    def _prove(self) -> None:
        if self._is_proving:
            return
        self._is_proving, begun_ms = True, self._node.scheduler.now_ms

        def done(error: GroupError) -> None:
            self._is_proving = False
            if error is GroupError.NONE:
                self.proven_ms = begun_ms

        self.submit(NothingEntry(), done)

    # The machine ----------------------------------------------------------------------------------------------------
    def step(self, hosted: _Hosted, event: group_events.GroupEvent) -> None:
        for effect in hosted.machine.step(event, self._node.scheduler.now_ms):
            self._perform(hosted, effect)
        hosted.machine.check_invariants()
        self._wake_in_time(hosted)

    def _wake_in_time(self, hosted: _Hosted) -> None:
        due_ms = hosted.machine.next_deadline_ms()
        if due_ms is not None and not self.is_closed:
            delay_ms = max(1, due_ms - self._node.scheduler.now_ms)
            self._node.scheduler.after(delay_ms, self._node, self._wake, hosted, due_ms)

    def _wake(self, hosted: _Hosted, due_ms: int) -> None:
        if not self.is_closed and hosted.machine.next_deadline_ms() == due_ms:
            self.step(hosted, group_events.TimePassed())

    def _perform(self, hosted: _Hosted, effect: group_events.GroupEffect) -> None:
        match effect:
            case group_events.AnswerJoin(waiter, answer) | group_events.AnswerSync(waiter, answer):
                self._answer(waiter, answer)
            case group_events.AnswerHeartbeat(waiter, error):
                self._answer(waiter, error)
            case group_events.AnswerLeave(waiter, errors):
                self._answer(waiter, errors)
            case group_events.PersistGroup(ticket, record):
                self._persist(hosted, ticket, GroupEntry(hosted.machine.group_id, record))
            case group_events.PersistMember(ticket, generation, member):
                self._persist(hosted, ticket, MemberEntry(hosted.machine.group_id, generation, member))
            case _:
                assert_never(effect)

    def _persist(self, hosted: _Hosted, ticket: int, entry: GroupEntry | MemberEntry) -> None:
        def done(error: GroupError) -> None:
            if not self.is_closed:
                is_durable = error is GroupError.NONE
                if is_durable:
                    hosted.durable = _kept(hosted.durable, entry)
                self.step(
                    hosted,
                    group_events.GroupPersisted(ticket) if is_durable else group_events.PersistFailed(ticket, error),
                )

        self.submit(entry, done)

    def _answer(self, waiter: int, answer: Any) -> None:
        sender, request = self._waiters.pop(waiter)
        self._node.reply(sender, request, answer)


def _kept(record: GroupRecord | None, entry: GroupEntry | MemberEntry) -> GroupRecord | None:
    if isinstance(entry, GroupEntry):
        return entry.record
    is_present = record is not None and record.generation == entry.generation
    return record.with_returned(entry.member) if record is not None and is_present else record


class Coordinators:
    """Of one node: each shard of the group log that it leads."""

    def __init__(self, node: LeadingNode) -> None:
        self._node = node
        self.shards: dict[ShardKey, GroupShard] = {}

    def look(self) -> None:
        """Take over what this node leads now, and give up what it leads no more."""
        view = self._node.view
        for key in [key for key in view.shards if view.topics[key.topic_id].name == GROUP_LOG]:
            is_led, hosted = self._node.leads_shard(key), self.shards.get(key)
            if is_led and hosted is None:
                hosted = self.shards[key] = GroupShard(self._node, key)
                self._node.spawn(hosted.load())
            elif not is_led and hosted is not None:
                del self.shards[key]
                self._node.tell(f"gives up the groups of shard {key.shard}")
                hosted.close()

    def asked(self, sender: str, request: Request, ask: GroupAsk) -> None:
        self.look()
        hosted = next(iter(self.shards.values()), None)
        if hosted is None:
            self._node.reply(sender, request, GroupError.NOT_COORDINATOR)
        else:
            hosted.asked(sender, request, ask)


def _offered(
    node: LeadingNode, key: ShardKey, entries: tuple[LogEntry, ...], answered: Callable[..., None]
) -> OfferedBatch:
    """One batch of the group log, acknowledged by all in sync."""
    value = f"g{node.node_id}.{node.network.next_number()}"
    size = _ENTRY_BYTES * len(entries)
    return OfferedBatch((value, entries), size, len(entries), node.now_ms, -1, -1, -1, -1, Offer([None], answered), 0)


def append_entries(
    node: LeadingNode, key: ShardKey, entries: tuple[LogEntry, ...], answered: Callable[[tuple[Any, ...]], None]
) -> None:
    shard = node.shards.get(key)
    if shard is None:
        answered((AppendFailure.NOT_LEADER,))
    else:
        shard.offer([_offered(node, key, entries, answered)])
