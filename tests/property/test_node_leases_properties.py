"""Whatever nodes do and whenever the leader checks: no node that kept its lease is lost, and one that did not is
found."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.machines.plans.node_leases import CHECKS_PER_LEASE, LONGEST_PROBATION, NodeLeases
from stratalog.model.commands.table_commands import NoteLives
from stratalog.model.errors import Fenced, LeaseHeld
from stratalog.model.metadata import Life, Node, NodeInfo

LEASE_MS = 800
NODES = st.integers(1, 3)


class LeaseMachine(RuleBasedStateMachine):
    """A model that knows only when each node was last heard, and what metadata say."""

    @initialize(nodes=st.integers(1, 3), lost=st.integers(0, 2))
    def lead(self, nodes: int, lost: int) -> None:
        self.now_ms = 0
        self.records = {n: Node(n, f"disk-{n}", "h", 1, None, 1, is_alive=n != lost) for n in range(1, nodes + 1)}
        self.heard_ms = {n: 0 for n, node in self.records.items() if node.is_alive}
        self.losses = dict.fromkeys(self.records, 0)
        """Of its present life, under this leader."""
        self.closed_ms: dict[int, int] = {}
        """When the connection of the last heartbeat was first seen to be closed."""
        self.is_store_away = False
        self.leases = NodeLeases(LEASE_MS, self.records.values(), 0)

    @rule()
    def another_leads(self) -> None:
        self.leases = NodeLeases(LEASE_MS, self.records.values(), self.now_ms)
        self.losses = dict.fromkeys(self.records, 0)
        self.closed_ms.clear()
        self.heard_ms = {n: self.now_ms for n, node in self.records.items() if node.is_alive}

    @rule(number=NODES, disk=st.sampled_from("ab"), is_process_over=st.booleans())
    def register(self, number: int, disk: str, is_process_over: bool) -> None:
        known = self.records.get(number)
        storage_id = f"disk-{number}{disk}"
        lives = number in self.heard_ms and self.now_ms - self.heard_ms[number] < LEASE_MS
        try:
            info = NodeInfo(number, storage_id, "h", 1)
            self.leases.check_registration(info, self.now_ms, is_process_over=is_process_over)
        except LeaseHeld:
            assert known is not None and not is_process_over and lives, "only a living one stands in the way"
            return
        assert known is None or is_process_over or not lives
        self.put(Node(number, storage_id, "h", 1, None, known.epoch + 1 if known else 1))
        self.heard_ms[number] = self.now_ms

    @rule(number=NODES, behind=st.integers(0, 1), is_last=st.booleans())
    def heartbeat(self, number: int, behind: int, is_last: bool) -> None:
        known = self.records.get(number)
        try:
            self.leases.heartbeat_received(
                Life(number, (known.epoch if known else 1) - behind), self.now_ms, is_last=is_last
            )
        except Fenced:
            assert known is None or behind, "the present life is heard"
            return
        assert known is not None and not behind, "no other is"
        self.closed_ms.pop(number, None)
        if is_last:
            self.heard_ms.pop(number, None)
        else:
            self.heard_ms[number] = self.now_ms

    @rule(number=NODES)
    def a_connection_stays_closed(self, number: int) -> None:
        self.a_connection_is_closed(number)
        self.time_passes(1)
        self.a_connection_is_closed(number)

    @rule(number=NODES)
    def a_connection_is_closed(self, number: int) -> None:
        """A node that sent a heartbeat within half a lease keeps the other half; one that reconnects at once keeps it
        whole."""
        due = self.leases.due(self.now_ms, [number]) or NoteLives()
        heard_ms = self.heard_ms.get(number)
        closed_ms = self.closed_ms.setdefault(number, self.now_ms) if number in self.records else self.now_ms
        is_cut = self.now_ms - closed_ms >= LEASE_MS // CHECKS_PER_LEASE
        if heard_ms is not None and is_cut and self.now_ms - heard_ms >= LEASE_MS // 2:
            self.heard_ms[number] = min(heard_ms, self.now_ms - LEASE_MS)
        assert all(
            life.node_id not in self.heard_ms or self.now_ms - self.heard_ms[life.node_id] >= LEASE_MS
            for life in due.lost
        )
        self.check_leases()

    @rule(looks=st.integers(1, 12))
    def time_passes(self, looks: int) -> None:
        for _ in range(looks):
            self.now_ms += self.leases.check_every_ms
            self.check_leases()

    @rule(number=NODES)
    def heard_without_a_gap(self, number: int) -> None:
        """However often it was lost, it is not left out forever."""
        known = self.records.get(number)
        if known is None or self.is_store_away:
            return
        for _ in range(LONGEST_PROBATION + 1):
            self.leases.heartbeat_received(known.life, self.now_ms)
            self.closed_ms.pop(number, None)
            self.heard_ms[number] = self.now_ms
            self.time_passes(CHECKS_PER_LEASE - 1)
            self.leases.heartbeat_received(known.life, self.now_ms)
            self.heard_ms[number] = self.now_ms
            self.time_passes(1)
        assert self.records[number].is_alive

    @rule(gap_ms=st.integers(LEASE_MS, 10 * LEASE_MS))
    def stand_still(self, gap_ms: int) -> None:
        living = [n for n, heard_ms in self.heard_ms.items() if self.now_ms - heard_ms < LEASE_MS]
        self.now_ms += gap_ms
        self.heard_ms.update(dict.fromkeys(living, self.now_ms))
        self.check_leases()

    @rule(late_ms=st.integers(1, LEASE_MS // 2 - LEASE_MS // CHECKS_PER_LEASE))
    def look_late(self, late_ms: int) -> None:
        """What kept the caller from checking kept heartbeats from arriving: that time counts against no node."""
        living = [n for n, heard_ms in self.heard_ms.items() if self.now_ms - heard_ms < LEASE_MS]
        self.now_ms += self.leases.check_every_ms + late_ms
        self.heard_ms.update({n: self.heard_ms[n] + late_ms for n in living})
        self.check_leases()

    @rule(is_away=st.booleans())
    def move_the_store(self, is_away: bool) -> None:
        self.is_store_away = is_away

    def check_leases(self) -> None:
        due = self.leases.due(self.now_ms) or NoteLives()
        for life in due.lost:
            number = life.node_id
            assert self.records[number].life == life and self.records[number].is_alive, "each change is told once"
            assert number not in self.heard_ms or self.now_ms - self.heard_ms[number] >= LEASE_MS, "it kept its lease"
        for life in due.heard:
            assert self.records[life.node_id].life == life and not self.records[life.node_id].is_alive
            assert self.now_ms - self.heard_ms[life.node_id] < LEASE_MS, "it was heard"
        if not self.is_store_away:
            for lives, is_alive in ((due.lost, False), (due.heard, True)):
                for life in lives:
                    self.put(replace(self.records[life.node_id], is_alive=is_alive))
            living = {n for n, heard_ms in self.heard_ms.items() if self.now_ms - heard_ms < LEASE_MS}
            noted = {n for n, node in self.records.items() if node.is_alive}
            assert noted <= living, "metadata say who lives"
            assert all(self.losses.get(n, 0) > 1 for n in living - noted), "but of whom it was lost again and again"

    def put(self, node: Node) -> None:
        known = self.records.get(node.node_id)
        if known is None or known.life != node.life:
            self.losses[node.node_id] = 0
            self.closed_ms.pop(node.node_id, None)
        elif known.is_alive and not node.is_alive:
            self.losses[node.node_id] += 1
        self.records[node.node_id] = node
        self.leases.node_changed(node, self.now_ms)

    @invariant()
    def the_living_are_those_who_were_heard(self) -> None:
        living = {n for n, heard_ms in self.heard_ms.items() if self.now_ms - heard_ms < LEASE_MS}
        assert {life.node_id for life in self.leases.living(self.now_ms)} == living


LeaseMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_whatever_nodes_do = LeaseMachine.TestCase
