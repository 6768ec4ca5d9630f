"""The shell around the group machines: parks requests, steps, performs effects, and wakes groups in time.

It holds no decision. A request is a future in `_waiters` under the number its event carries; if the client is gone, its
answer is dropped. What the machine wants durable goes to the shard's log, and the machine hears when it is.
Its clock leaves out the time that the event loop stood still (`loop_stalls`), and groups are woken a slice at a time.
Thread: the event loop. Cost: one step per request, one heap entry per new nearest deadline.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar, assert_never, cast

from stratalog.formats.groups.group_log import (
    ConsumersChangedEntry,
    ConsumersEntry,
    GroupEntry,
    MemberEntry,
    encode_entry,
)
from stratalog.machines.groups import group_events
from stratalog.machines.groups.consumer_group import ConsumerGroup
from stratalog.machines.groups.consumer_group_events import (
    AnswerConsumer,
    AnswerShare,
    ConsumerAnswer,
    ConsumerGroupEffect,
    ConsumerGroupEvent,
    ConsumerHeartbeat,
    PersistConsumers,
    ShareAnswer,
)
from stratalog.machines.groups.group import Group
from stratalog.model.errors import InvalidRequest
from stratalog.model.groups.consumer_group import ConsumerGroupRecord
from stratalog.model.groups.group import GroupError, GroupRecord, MemberRecord
from stratalog_node.groups.deadlines import DeadlineHeap
from stratalog_node.groups.hosted import HostedGroup, entry_of
from stratalog_node.groups.loop_stalls import LoopStalls
from stratalog_node.groups.migration import NOWHERE, Migration, Unplaced
from stratalog_node.groups.room import GroupRoom
from stratalog_node.groups.stats import GroupStats

Answer: TypeAlias = (
    group_events.JoinAnswer
    | group_events.SyncAnswer
    | ConsumerAnswer
    | ShareAnswer
    | GroupError
    | tuple[GroupError, ...]
)
Event: TypeAlias = group_events.GroupEvent | ConsumerGroupEvent
Effect: TypeAlias = group_events.GroupEffect | ConsumerGroupEffect
Record: TypeAlias = GroupRecord | ConsumerGroupRecord
_A = TypeVar(
    "_A",
    group_events.JoinAnswer,
    group_events.SyncAnswer,
    ConsumerAnswer,
    ShareAnswer,
    GroupError,
    tuple[GroupError, ...],
)
_WRITES = (group_events.PersistGroup, group_events.PersistMember, PersistConsumers)

_WAKES_PER_TURN = 200
_ANSWERS_PER_TURN = 500
_CATCH_UP_POLL_S = 0.1


class Membership:
    def __init__(
        self,
        *,
        loop_stalls: LoopStalls,
        room: GroupRoom,
        monotonic_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        migration: Migration,
        stats: GroupStats,
    ) -> None:
        self._loop_stalls = loop_stalls
        self._migration = migration
        self._room = room
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._stats = stats
        self._waiters: dict[int, asyncio.Future[Answer]] = {}
        self._last_waiter = 0
        self._later: deque[Effect] = deque()
        """Answers of steps that answered many requests at once. Each names its request."""
        self._deadlines: DeadlineHeap[HostedGroup] = DeadlineHeap()
        self._alarm: asyncio.TimerHandle | None = None

    async def ask(self, hosted: HostedGroup, event: Callable[[int], Event], kind: type[_A]) -> _A:
        """Step with the event made for a new waiter, and wait for its answer. Requires: an event of the group's
        protocol."""
        self._last_waiter += 1
        waiter = self._last_waiter
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = future
        try:
            self.step(hosted, event(waiter))
            return cast(_A, await future)  # a machine answers each kind of request with its own kind of answer
        finally:
            self._waiters.pop(waiter, None)

    def now_ms(self) -> int:
        """The time that sessions go by."""
        return self._monotonic_ms() - self._loop_stalls.stalled_ms()

    def step(self, hosted: HostedGroup, event: Event) -> None:
        generation = hosted.machine.generation
        effects = _stepped(hosted.machine, event, self.now_ms())
        if hosted.machine.generation != generation:
            self._stats.rebalances += 1
        for number, effect in enumerate(effects):
            if number >= _ANSWERS_PER_TURN and not isinstance(effect, _WRITES):
                if not self._later:
                    asyncio.get_running_loop().call_soon(self._answer_some, hosted)
                self._later.append(effect)
            else:
                self._perform(hosted, effect)
        self.downgrade_if_due(hosted)
        self.count(hosted)
        self.wake_in_time(hosted)
        self.forget_if_blank(hosted)

    def downgrade_if_due(self, hosted: HostedGroup) -> None:
        """A consumer group with classic members only becomes a classic group. No request of a member waits at that
        moment."""
        machine = hosted.machine
        if isinstance(machine, ConsumerGroup) and machine.is_to_be_classic:
            hosted.machine = self._migration.downgraded(machine, self.now_ms())

    def upgrade(
        self, hosted: HostedGroup, joining: ConsumerHeartbeat, gone: Unplaced = NOWHERE
    ) -> ConsumerAnswer | Unplaced | None:
        """Make a consumer group of a classic one with members; or say why not, or what the catalog would have to show
        (`Migration.upgraded`). Requires: the heartbeat is asked next, with nothing between."""
        machine = hosted.machine
        if not isinstance(machine, Group):
            return None
        made = self._migration.upgraded(machine, joining, self.now_ms(), gone)
        if not isinstance(made, ConsumerGroup):
            return made
        hosted.machine = made
        return None

    def _answer_some(self, hosted: HostedGroup) -> None:
        """Thousands of members hear of their rebalance a slice at a time: each answer is work for its connection."""
        for _ in range(min(len(self._later), _ANSWERS_PER_TURN)):
            self._perform(hosted, self._later.popleft())
        if self._later:
            asyncio.get_running_loop().call_soon(self._answer_some, hosted)

    def count(self, hosted: HostedGroup) -> None:
        """Take what its members hold into account, unless it has left."""
        if hosted.is_present:
            size_bytes = hosted.machine.size_bytes
            self._room.change(size_bytes - hosted.counted_bytes)
            hosted.counted_bytes = size_bytes

    def forget_if_blank(self, hosted: HostedGroup) -> None:
        if hosted.is_forgettable:
            self._forget(hosted)

    def close(self, hosted: HostedGroup, error: GroupError) -> None:
        """The group leaves this node: its waiting requests get the error, and nothing here refers to it any more."""
        self.step(hosted, group_events.GroupClosed(error))
        self._forget(hosted)

    def _forget(self, hosted: HostedGroup) -> None:
        self._deadlines.forget(hosted)
        if hosted.is_present:
            self._room.change(-hosted.counted_bytes)
            hosted.counted_bytes = 0
            hosted.shard.forget(hosted)

    def wake_in_time(self, hosted: HostedGroup) -> None:
        if self._deadlines.schedule(hosted, hosted.machine.next_deadline_ms()):
            self._arm()

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def run_due(self) -> None:
        """Wake groups whose deadline is reached; called by the alarm. No group is woken while requests that came in
        time may still be unread."""
        if not self._loop_stalls.is_catching_up:
            for hosted in self._deadlines.due(self.now_ms(), _WAKES_PER_TURN):
                self.step(hosted, group_events.TimePassed())
        self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        earliest_ms = self._deadlines.earliest_ms()
        if earliest_ms is not None:
            delay_s = max(earliest_ms - self.now_ms(), 0) / 1000
            if self._loop_stalls.is_catching_up:
                delay_s = max(delay_s, _CATCH_UP_POLL_S)
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self.run_due)

    def _perform(self, hosted: HostedGroup, effect: Effect) -> None:
        match effect:
            case group_events.AnswerJoin(waiter, answer):
                self._answer(waiter, answer)
            case group_events.AnswerSync(waiter, assignment):
                self._answer(waiter, assignment)
            case AnswerConsumer(waiter, answer):
                self._answer(waiter, answer)
            case AnswerShare(waiter, share):
                self._answer(waiter, share)
            case group_events.AnswerHeartbeat(waiter, error):
                self._answer(waiter, error)
            case group_events.AnswerLeave(waiter, errors):
                self._answer(waiter, errors)
            case group_events.PersistGroup() | group_events.PersistMember() | PersistConsumers():
                self._persist(hosted, effect)
            case _:
                assert_never(effect)

    def _answer(self, waiter: int, answer: Answer) -> None:
        future = self._waiters.pop(waiter, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def record_again(self, hosted: HostedGroup) -> None:
        """Write the state of a group whose last record did not get into the log."""
        record = hosted.machine.record()
        entry = entry_of(hosted.group_id, record, self._wall_ms())
        self._write(hosted, entry, lambda _: record, lambda _: None)

    def _persist(
        self, hosted: HostedGroup, effect: group_events.PersistGroup | group_events.PersistMember | PersistConsumers
    ) -> None:
        ticket, changed_ms = effect.ticket, self._wall_ms()

        def on_written(error: GroupError) -> None:
            if error is GroupError.NONE:
                self.step(hosted, group_events.GroupPersisted(ticket))
            else:
                self.step(hosted, group_events.PersistFailed(ticket, error))

        if isinstance(effect, group_events.PersistGroup):
            record = effect.record
            self._write(hosted, GroupEntry(hosted.group_id, record, changed_ms), lambda _: record, on_written)
        elif isinstance(effect, PersistConsumers):
            self._persist_consumers(hosted, effect, changed_ms, on_written)
        else:
            member, generation = effect.member, effect.generation
            entry = MemberEntry(hosted.group_id, generation, member, changed_ms)
            self._write(hosted, entry, lambda durable: _with_returned(durable, generation, member), on_written)

    def _persist_consumers(
        self, hosted: HostedGroup, effect: PersistConsumers, changed_ms: int, on_written: Callable[[GroupError], None]
    ) -> None:
        whole_or_change = effect.entry
        if isinstance(whole_or_change, ConsumerGroupRecord):
            record = whole_or_change
            self._write(hosted, ConsumersEntry(hosted.group_id, record, changed_ms), lambda _: record, on_written)
        else:
            change = whole_or_change
            entry = ConsumersChangedEntry(hosted.group_id, change, changed_ms)
            self._write(
                hosted,
                entry,
                lambda durable: durable.with_change(change) if isinstance(durable, ConsumerGroupRecord) else durable,
                on_written,
            )

    def _write(
        self,
        hosted: HostedGroup,
        entry: GroupEntry | MemberEntry | ConsumersEntry | ConsumersChangedEntry,
        becomes: Callable[[Record | None], Record | None],
        on_written: Callable[[GroupError], None],
    ) -> None:
        """Put the entry into the log; then what is durable changes as it says."""

        def done(error: GroupError) -> None:
            hosted.writes -= 1
            if error is GroupError.NONE:
                hosted.durable, hosted.changed_ms = becomes(hosted.durable), entry.changed_ms
            on_written(error)

        log = hosted.shard.log
        assert log is not None, "a group is hosted only by a loaded shard"
        hosted.writes += 1
        try:
            pairs = [encode_entry(entry)]
        except InvalidRequest:  # a name beyond what the format holds: the members hear that it failed
            asyncio.get_running_loop().call_soon(done, GroupError.UNKNOWN)
        else:
            log.submit(pairs, done)


def _stepped(machine: Group | ConsumerGroup, event: Event, now_ms: int) -> Sequence[Effect]:
    """Raises: TypeError for an event of the other protocol, a fault of the caller."""
    if isinstance(machine, Group):
        if isinstance(event, group_events.GroupEvent):
            return machine.step(event, now_ms)
    elif isinstance(event, ConsumerGroupEvent):
        return machine.step(event, now_ms)
    raise TypeError(f"{type(event).__name__} is not an event of this group's protocol")


def _with_returned(durable: Record | None, generation: int, member: MemberRecord) -> Record | None:
    """As the log's reader understands the entry of a member that came back."""
    if isinstance(durable, GroupRecord) and durable.generation == generation:
        return durable.with_returned(member)
    return durable
