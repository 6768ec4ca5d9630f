"""What a closed connection says of a node: a killed process leaves it closed, a living one makes another at once."""

from __future__ import annotations

from stratalog.machines.plans.node_leases import NodeLeases
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
