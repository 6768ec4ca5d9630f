"""Buffers, the byte budget and the lines of waiting answers, under any sequence of uses."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.machines.leading.waiting_batches import WaitingBatches
from stratalog_node.buffers import Buffer, BufferPool
from stratalog_node.serve.connections.byte_budget import ByteBudget

KEPT = 1 << 20


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BufferPool(kept_bytes=KEPT)
        self.lent: list[Buffer] = []

    @rule(size=st.integers(0, 3 << 20))
    def take(self, size: int) -> None:
        buffer = self.pool.lend(size)
        assert len(buffer.view) == buffer.capacity >= size
        assert all(buffer is not other for other in self.lent), "one buffer, two owners"
        self.lent.append(buffer)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.pool.give_back(self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1))))

    @invariant()
    def what_lies_unused_is_bounded_and_what_is_lent_is_known(self) -> None:
        kept = sum(buffer.capacity for free in self.pool._free.values() for buffer in free)
        assert kept == self.pool._kept <= KEPT
        assert self.pool.lent_bytes == sum(buffer.capacity for buffer in self.lent)


@dataclass(eq=False)
class Owner:
    name: int
    granted: int = 0
    waits_for: int = 0


class BudgetMachine(RuleBasedStateMachine):
    """Connections that grow, finish, are closed. No connection may wait while none can continue."""

    LIMIT = 100

    def __init__(self) -> None:
        super().__init__()
        self.budget = ByteBudget(self.LIMIT)
        self.owners: list[Owner] = []

    @rule()
    def connect(self) -> None:
        self.owners.append(Owner(len(self.owners)))

    def grow(self, owner: Owner, size: int) -> None:
        def resume() -> None:
            assert owner.waits_for == size, "served twice, or after it was gone"
            owner.granted += size
            owner.waits_for = 0

        owner.waits_for = size
        if self.budget.reserve(owner, size, resume):
            owner.waits_for = 0
            owner.granted += size

    @precondition(lambda self: any(not o.waits_for for o in self.owners))
    @rule(data=st.data(), size=st.integers(1, 2 * LIMIT))
    def take(self, data: st.DataObject, size: int) -> None:
        self.grow(data.draw(st.sampled_from([o for o in self.owners if not o.waits_for])), size)

    @precondition(lambda self: any(not o.waits_for for o in self.owners))
    @rule(data=st.data(), size=st.integers(1, 2 * LIMIT))
    def take_if_free(self, data: st.DataObject, size: int) -> None:
        owner = data.draw(st.sampled_from([o for o in self.owners if not o.waits_for]))
        if self.budget.take_if_free(size):
            owner.granted += size
            assert self.budget.used_bytes <= self.LIMIT

    @precondition(lambda self: any(o.granted and not o.waits_for for o in self.owners))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([o for o in self.owners if o.granted and not o.waits_for]))
        granted, owner.granted = owner.granted, 0
        self.budget.release(owner, granted)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.owners.remove(owner)
        self.budget.abandon(owner)
        self.budget.release(owner, owner.granted)

    @invariant()
    def the_sum_is_right(self) -> None:
        assert self.budget.used_bytes == sum(owner.granted for owner in self.owners)
        assert self.budget.waiting_count == sum(1 for owner in self.owners if owner.waits_for)

    @invariant()
    def whoever_waits_waits_for_somebody_who_can_go_on(self) -> None:
        if any(owner.waits_for for owner in self.owners):
            assert any(owner.granted and not owner.waits_for for owner in self.owners), "all wait for each other"

    @invariant()
    def only_one_overdraws(self) -> None:
        largest = max((owner.granted for owner in self.owners), default=0)
        assert self.budget.used_bytes <= self.LIMIT + largest


TestPool = PoolMachine.TestCase
TestBudget = BudgetMachine.TestCase


def batch(acks: int, end_offset: int) -> OfferedBatch:
    made = OfferedBatch(b"", 0, 1, 0, -1, -1, -1, acks, None, None)
    made.base_offset = end_offset - 1
    return made


@given(st.lists(st.tuples(st.sampled_from([-1, 1]), st.booleans(), st.integers(0, 20), st.integers(0, 20))))
def test_every_waiting_answer_is_taken_once_in_order_and_never_too_early(
    steps: list[tuple[int, bool, int, int]],
) -> None:
    lines = WaitingBatches()
    inside: dict[int, list[OfferedBatch]] = {-1: [], 1: []}
    end = mark = high = 0
    for acks, is_repeated, leader_step, high_step in steps:
        if is_repeated and end > mark:
            waiting = batch(acks, mark + (end - mark + 1) // 2)
            lines.insert(waiting)
        else:
            end += 1
            waiting = batch(acks, end)
            lines.append(waiting)
        inside[acks].append(waiting)
        mark = min(end, mark + leader_step % 3)
        high = min(mark, high + high_step % 3)
        taken = lines.take_reached(mark, high)
        for acks_of, limit in ((1, mark), (-1, high)):
            due = [w for w in inside[acks_of] if w.end_offset <= limit]
            got = [w for w in taken if w.acks == acks_of]
            assert set(map(id, got)) == set(map(id, due))
            assert [w.end_offset for w in got] == sorted(w.end_offset for w in got)
            inside[acks_of] = [w for w in inside[acks_of] if w.end_offset > limit]
        assert len(lines) == sum(map(len, inside.values()))
    lost = lines.take_above(high + 2)
    assert all(w.end_offset > high + 2 for w in lost)
    assert all(w.payload is None for w in lost), "what waits is the answer"
    assert len(lines) == sum(1 for line in inside.values() for w in line if w.end_offset <= high + 2)
