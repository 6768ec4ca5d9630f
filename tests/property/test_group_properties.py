"""Whatever clients do in whatever order: one leader, rising generations, every request answered exactly once."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stratalog.machines.groups import group_events
from stratalog.machines.groups.group import Group
from stratalog.model.groups.group import GroupError, GroupRecord, GroupState, MemberProtocol

LIMITS = group_events.GroupLimits(
    min_session_timeout_ms=1_000,
    max_session_timeout_ms=20_000,
    initial_rebalance_delay_ms=3_000,
    max_members=6,
    new_member_join_timeout_ms=60_000,
)
LONGEST_MS = 120_000
"""After this long without a client everything has run out."""

clients = st.integers(0, 7)
offers = st.lists(st.sampled_from(["range", "sticky", "rr"]), min_size=1, max_size=3, unique=True)


class Clients(RuleBasedStateMachine):
    """Clients of one group, each with the member id and generation it was last told."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.group = Group("g", LIMITS)
        self.ids: dict[int, str] = {}
        self.generations: dict[int, int] = {}
        self.open: dict[int, tuple[str, int]] = {}
        """Waiter -> (kind, client)."""
        self.answered: set[int] = set()
        self.waiters = 0
        self.births = 0
        self.persisting: list[group_events.PersistGroup | group_events.PersistMember] = []
        self.durable: GroupRecord | None = None
        self.has_lost = False
        self.durable_generation = 0
        self.highest_generation = 0
        self.leaders: dict[int, str] = {}
        """Generation -> the member told that it leads."""
        self.assignments: dict[tuple[int, str], bytes] = {}

    # What clients do --------------------------------------------------------------------------------------------
    @rule(client=clients, static=st.booleans(), version=st.sampled_from([3, 5, 9]), offers=offers, forget=st.booleans())
    def join(self, client: int, static: bool, version: int, offers: list[str], forget: bool) -> None:
        self.births += 1
        instance_id = f"i{client % 3}" if static else None
        member_id = "" if forget else self.ids.get(client, "")
        event = group_events.MemberJoined(
            waiter=self.waiter("join", client),
            member_id=member_id,
            new_member_id=f"m{self.births}",
            instance_id=instance_id,
            client_id=f"c{client}",
            client_host="h",
            session_timeout_ms=5_000 + 1_000 * client,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=tuple(MemberProtocol(name, b"x") for name in offers),
            requires_known_id=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self.step(event)

    @rule(client=clients)
    def sync(self, client: int) -> None:
        given = tuple((member_id, f"{member_id}!".encode()) for member_id in self.ids.values())
        generation = self.generations.get(client, 0)
        self.step(
            group_events.MemberSynced(
                self.waiter("sync", client), self.ids.get(client, "?"), None, generation, "consumer", None, given
            )
        )

    @rule(client=clients)
    def beat(self, client: int) -> None:
        waiter = self.waiter("beat", client)
        self.step(
            group_events.HeartbeatReceived(waiter, self.ids.get(client, "?"), None, self.generations.get(client, 0))
        )

    @rule(leavers=st.lists(clients, min_size=1, max_size=3))
    def leave(self, leavers: list[int]) -> None:
        members = tuple(group_events.LeavingMember(self.ids.get(client, "?"), None) for client in leavers)
        self.step(group_events.MembersLeft(self.waiter("leave", leavers[0]), members))

    @rule(client=clients)
    def commit(self, client: int) -> None:
        generation = self.generations.get(client, -1)
        member_id = self.ids.get(client, "")
        error = self.group.commit_error(member_id, None, generation, self.now_ms)
        if error is GroupError.NONE and generation >= 0:
            assert generation == self.group.generation, "a member of an old generation committed"
            assert self.group.state is not GroupState.COMPLETING_REBALANCE

    @rule(span_ms=st.integers(0, 12_000))
    def wait(self, span_ms: int) -> None:
        self.pass_time(span_ms)

    @rule(is_lost=st.booleans())
    def settle_append(self, is_lost: bool) -> None:
        if self.persisting:
            effect = self.persisting.pop(0)
            self.has_lost = self.has_lost or is_lost
            if is_lost:
                self.step(group_events.PersistFailed(effect.ticket, GroupError.COORDINATOR_NOT_AVAILABLE))
            else:
                self.keep(effect)
                self.step(group_events.GroupPersisted(effect.ticket))

    def keep(self, effect: group_events.PersistGroup | group_events.PersistMember) -> None:
        if isinstance(effect, group_events.PersistGroup):
            record = effect.record
        else:
            assert self.durable is not None and self.durable.generation == effect.generation
            record = self.durable.with_returned(effect.member)
        assert record.generation >= self.durable_generation, "the log's generation fell"
        self.durable, self.durable_generation = record, record.generation

    # The shell --------------------------------------------------------------------------------------------------
    def waiter(self, kind: str, client: int) -> int:
        self.waiters += 1
        self.open[self.waiters] = (kind, client)
        return self.waiters

    def pass_time(self, span_ms: int) -> None:
        until_ms = self.now_ms + span_ms
        for _ in range(1_000):
            deadline_ms = self.group.next_deadline_ms()
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.step(group_events.TimePassed())
        else:
            raise AssertionError("the group wakes forever")
        self.now_ms = until_ms

    def step(self, event: group_events.GroupEvent) -> None:
        for effect in self.group.step(event, self.now_ms):
            match effect:
                case group_events.AnswerJoin(waiter, answer):
                    self.joined(self.take(waiter, "join"), answer)
                case group_events.AnswerSync(waiter, answer):
                    client = self.take(waiter, "sync")
                    if answer.error is GroupError.NONE:
                        assert self.group.state is GroupState.STABLE
                        assert answer.assignment in (b"", f"{self.ids[client]}!".encode()), "someone else's work"
                case group_events.AnswerHeartbeat(waiter, _):
                    self.take(waiter, "beat")
                case group_events.AnswerLeave(waiter, _):
                    self.take(waiter, "leave")
                case group_events.PersistGroup() | group_events.PersistMember():
                    self.persisting.append(effect)

    def take(self, waiter: int, kind: str) -> int:
        assert waiter not in self.answered, "answered twice"
        self.answered.add(waiter)
        asked, client = self.open.pop(waiter)
        assert asked == kind, "the wrong kind of answer"
        return client

    def joined(self, client: int, answer: group_events.JoinAnswer) -> None:
        if answer.error is GroupError.MEMBER_ID_REQUIRED:
            self.ids[client] = answer.member_id
        elif answer.error is GroupError.NONE:
            self.ids[client] = answer.member_id
            self.generations[client] = answer.generation
            assert answer.generation >= self.highest_generation, "the generation fell"
            self.highest_generation = answer.generation
            if answer.leader == answer.member_id and not answer.skip_assignment:
                leader = self.leaders.setdefault(answer.generation, answer.member_id)
                assert leader == answer.member_id, "two members lead one generation"
                assert answer.member_id in {member.member_id for member in answer.members}

    # What must hold ---------------------------------------------------------------------------------------------
    @invariant()
    def holds(self) -> None:
        self.group.check_invariants()
        members = list(self.group.members)
        waiting = {m.join_waiter for m in members} | {m.sync_waiter for m in members}
        assert set(self.open) <= waiting, "a request is parked that no member knows of"
        assert self.group.generation >= self.durable_generation
        assert len(members) <= 2 * LIMITS.max_members
        if self.group.state is GroupState.STABLE and not self.persisting and not self.has_lost:
            assert self.durable is not None
            assert {m.member_id for m in self.durable.members} == {m.member_id for m in members}
            assert self.durable.leader == self.group.record().leader

    def teardown(self) -> None:
        while self.persisting:
            self.settle_append(is_lost=False)
        self.pass_time(LONGEST_MS)
        while self.persisting:
            self.settle_append(is_lost=False)
        self.pass_time(LONGEST_MS)
        assert not self.open, "a request was never answered"
        assert self.group.state is GroupState.EMPTY, "members live on though nobody sends heartbeats"
        self.step(group_events.GroupClosed(GroupError.NOT_COORDINATOR))
        assert self.group.next_deadline_ms() is None


TestGroupOfAnyClients = Clients.TestCase
TestGroupOfAnyClients.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
