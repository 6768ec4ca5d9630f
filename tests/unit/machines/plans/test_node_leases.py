"""What a closed connection says of a node: a killed process leaves it closed, a living one makes another at once."""

from __future__ import annotations

import pytest

from stratalog.machines.plans.node_leases import STUCK_AGAIN_AFTER, NodeLeases
from stratalog.model.commands.table_commands import NoteLives
from stratalog.model.metadata import Life, Node

LEASE_MS = 2_000
LIFE = Life(1, 1)


def heard_at_0() -> NodeLeases:
    leases = NodeLeases(LEASE_MS, [], 0)
    leases.node_changed(Node(1, "disk-a", "host", 9092, None, 1), 0)
    leases.heartbeat_received(LIFE, 0)
    return leases


def test_a_living_node_that_gives_a_heartbeat_up_and_closes_its_connection_keeps_its_lease() -> None:
    """The service may look between the end of the one and the next heartbeat."""
    leases = heard_at_0()
    for now_ms in range(0, 1_100, leases.check_every_ms):
        assert leases.due(now_ms) is None
    assert leases.due(1_100, cut=[1]) is None, "closed just now"
    leases.heartbeat_received(LIFE, 1_110)
    for now_ms in range(1_250, 1_110 + LEASE_MS, leases.check_every_ms):
        assert leases.due(now_ms) is None
    assert leases.due(1_110 + LEASE_MS) == NoteLives(lost=(LIFE,))


def test_a_node_that_is_killed_half_a_lease_after_its_last_heartbeat_is_lost_two_checks_later() -> None:
    leases = heard_at_0()
    for now_ms in range(0, 1_000, leases.check_every_ms):
        assert leases.due(now_ms) is None
    assert leases.due(1_000, cut=[1]) is None
    assert leases.due(1_100, cut=[1]) is None, "the end of another lease was looked for"
    assert leases.due(1_250, cut=[1]) == NoteLives(lost=(LIFE,))


def test_a_node_that_is_killed_between_two_heartbeats_is_lost_after_half_a_lease() -> None:
    leases = heard_at_0()
    assert leases.due(250) is None
    assert leases.due(500, cut=[1]) is None
    assert leases.due(750, cut=[1]) is None
    assert leases.due(1_000, cut=[1]) == NoteLives(lost=(LIFE,))


@pytest.mark.fault("stuck-repeated-report-lost")
def test_a_repeated_report_of_a_stuck_disk_stays_due_until_it_is_noted() -> None:
    leases = heard_at_0()
    stuck = NoteLives(stuck=(LIFE,))
    leases.heartbeat_received(LIFE, 100, can_write=False)
    assert leases.due(200) == stuck
    leases.node_changed(Node(1, "disk-a", "host", 9092, None, 1, can_write=False), 210)
    now_ms = 200
    while now_ms < 200 + STUCK_AGAIN_AFTER * LEASE_MS:
        assert now_ms == 200 or leases.due(now_ms) is None, "it is noted"
        now_ms += leases.check_every_ms
        leases.heartbeat_received(LIFE, now_ms, can_write=False)
    due = leases.due(now_ms)
    assert due == stuck
    leases.not_noted(due)
    assert leases.due(now_ms + 1) == stuck
    assert leases.due(now_ms + 2) is None


def three_heard_until(power_cut_ms: int) -> tuple[NodeLeases, list[Life]]:
    """Nodes 1 to 3 send a heartbeat every quarter of a lease, none at the same moment, up to `power_cut_ms`."""
    leases, lives = NodeLeases(LEASE_MS, [], 0), [Life(number, 1) for number in (1, 2, 3)]
    for life in lives:
        leases.node_changed(Node(life.node_id, f"disk-{life.node_id}", "host", 9092, None, 1), 0)
    for now_ms in range(0, power_cut_ms, leases.check_every_ms // 2):
        for life in lives:
            if (now_ms - life.node_id * 125) % 500 == 0:
                leases.heartbeat_received(life, now_ms)
        assert leases.due(now_ms) is None
    return leases, lives


@pytest.mark.fault("power-cut-leases-end-apart")
def test_nodes_whose_heartbeats_end_together_are_quiet_until_the_last_of_them_is_lost() -> None:
    leases, (first, second, third) = three_heard_until(4_000)
    found = [due for now_ms in range(4_000, 8_000, leases.check_every_ms // 2) if (due := leases.due(now_ms))]
    noted: list[tuple[tuple[Life, ...], tuple[Life, ...]]] = []
    for due in found:
        if (due.lost, due.quiet) not in noted:
            noted.append((due.lost, due.quiet))
    assert noted == [((first,), (second, third)), ((first, second), (third,)), ((first, second, third), ())]


@pytest.mark.fault("power-cut-leases-end-apart")
def test_nodes_whose_connections_are_closed_together_are_quiet_until_each_of_them_is_lost() -> None:
    """All processes are killed. The lease of one ends before those of the others."""
    leases, (first, second, third) = three_heard_until(4_000)
    noted: list[tuple[tuple[Life, ...], tuple[Life, ...]]] = []
    for now_ms in range(4_000, 8_000, leases.check_every_ms // 2):
        due = leases.due(now_ms, cut=(1, 2, 3))
        if due is not None and (due.lost, due.quiet) not in noted:
            noted.append((due.lost, due.quiet))
    assert noted == [((first,), (second, third)), ((first, second), (third,)), ((first, second, third), ())]


@pytest.mark.fault("power-cut-leases-end-apart")
def test_of_nodes_beside_a_killed_one_only_those_with_a_closed_connection_are_quiet() -> None:
    leases, (first, second, third) = three_heard_until(4_000)
    quiet: set[tuple[Life, ...]] = set()
    for now_ms in range(4_000, 5_000, leases.check_every_ms // 2):
        if (now_ms - 375) % 500 == 0:
            leases.heartbeat_received(third, now_ms)
        due = leases.due(now_ms, cut=(1, 2))
        if due is not None and first in due.lost and second not in due.lost:
            quiet.add(due.quiet)
    assert quiet == {(second,)}


@pytest.mark.fault("power-cut-leases-end-apart")
def test_nodes_that_are_heard_while_another_is_lost_are_not_quiet() -> None:
    leases, (first, second, third) = three_heard_until(4_000)
    for now_ms in range(4_000, 8_000, leases.check_every_ms // 2):
        for life in (second, third):
            if (now_ms - life.node_id * 125) % 500 == 0:
                leases.heartbeat_received(life, now_ms)
        if (due := leases.due(now_ms)) is not None:
            assert due == NoteLives(lost=(first,))
            break
    else:
        raise AssertionError("it is never lost")


def test_an_end_of_a_process_says_nothing_of_the_nodes_that_were_heard_when_it_was() -> None:
    leases, (first, second, third) = three_heard_until(4_000)
    leases.heartbeat_received(first, 4_000, is_last=True)
    assert leases.due(4_010) == NoteLives(lost=(first,))
    leases.node_changed(Node(1, "disk-1", "host", 9092, None, 1, is_alive=False), 4_020)
    for now_ms in (4_125, 4_250, 4_375, 4_500):
        assert leases.due(now_ms, cut=[2]) is None
        leases.heartbeat_received(third, now_ms)
    due = [leases.due(now_ms, cut=[2]) for now_ms in (4_625, 4_750, 4_875)]
    assert NoteLives(lost=(second,)) in due
