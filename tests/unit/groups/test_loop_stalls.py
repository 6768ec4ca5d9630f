"""Members do not pay for the time that the node's own event loop stood still."""

from __future__ import annotations

import pytest

from stratalog.model.groups.group import GroupError, GroupState
from stratalog_node.groups import loop_stalls as loop_stalls_module
from stratalog_node.groups.loop_stalls import LoopStalls
from support.group_node import GroupNode, joining, syncing
from support.waiting import eventually


@pytest.fixture
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of the loop are what counts; the clock is the test's."""
    monkeypatch.setattr(loop_stalls_module, "_TICK_S", 0.01)


async def a_member(node: GroupNode) -> str:
    joined = await node.groups.join(joining("g", "a", session_timeout_ms=10_000))
    await node.groups.sync(syncing("g", joined.member_id, 1))
    return joined.member_id


def stand_still(node: GroupNode, span_s: float) -> None:
    node.loop_s += span_s
    node.monotonic_ms += int(span_s * 1000)
    node.wall_ms += int(span_s * 1000)


@pytest.mark.fault("event-loop-blocked-longer")
async def test_no_member_expires_for_a_stall_before_its_heartbeats_were_read() -> None:
    node = await GroupNode().start()
    member_id = await a_member(node)
    stand_still(node, 13.5)
    node.groups.membership.run_due()
    assert (await node.groups.describe("g")).status.state is GroupState.STABLE
    assert await node.groups.heartbeat("g", member_id, None, 1) is GroupError.NONE
    await node.groups.stop()


@pytest.mark.fault("event-loop-blocked-longer")
@pytest.mark.usefixtures("short_ticks")
async def test_a_member_silent_after_a_stall_still_expires() -> None:
    node = await GroupNode().start()
    await a_member(node)
    await node.grow_older(9_000)
    stand_still(node, 13.5)
    node.groups.membership.run_due()
    assert (await node.groups.describe("g")).status.state is GroupState.STABLE
    await eventually(lambda: not node.groups.loop_stalls.is_catching_up)
    await node.wait(500)
    assert (await node.groups.describe("g")).status.state is GroupState.STABLE, "the stall counted for the session"
    await node.wait(501)
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    await node.groups.stop()


@pytest.mark.fault("event-loop-blocked-longer")
@pytest.mark.usefixtures("short_ticks")
async def test_sessions_that_ended_with_a_stall_wait_until_the_sockets_were_read() -> None:
    node = await GroupNode().start()
    await a_member(node)
    await node.grow_older(10_000)
    stand_still(node, 13.5)
    node.groups.membership.run_due()
    assert (await node.groups.describe("g")).status.state is GroupState.STABLE, "expired before any socket was read"
    await eventually(lambda: not node.groups.loop_stalls.is_catching_up)
    await node.wait(1)
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    await node.groups.stop()


def test_a_loop_that_is_a_little_late_has_not_stood_still() -> None:
    now = 0.0
    loop_stalls = LoopStalls(lambda: now)
    for late_s in (0.1, 0.3, 0.55):
        now += late_s
        assert loop_stalls.stalled_ms() == 0 and not loop_stalls.is_catching_up
    now += 5.0
    assert loop_stalls.stalled_ms() == 5_000 and loop_stalls.is_catching_up


@pytest.mark.fault("event-loop-blocked-longer")
@pytest.mark.usefixtures("short_ticks")
async def test_a_permanently_slow_loop_detects_dead_members() -> None:
    node = await GroupNode().start()
    await a_member(node)
    for _ in range(100):
        stand_still(node, 0.7)
        assert (await node.groups.describe("g")).status.state is GroupState.STABLE
        node.groups.membership.run_due()
    await eventually(lambda: not node.groups.loop_stalls.is_catching_up)
    node.groups.membership.run_due()
    assert (await node.groups.describe("g")).status.state is GroupState.EMPTY
    await node.groups.stop()


async def test_many_groups_that_are_due_together_are_woken_in_slices() -> None:
    node = await GroupNode().start()
    for n in range(500):
        await node.groups.join(joining(f"g{n}", "a", requires_known_id=True))
    assert node.groups.stats.hosted == 500
    node.monotonic_ms += 10_001
    node.groups.membership.run_due()
    assert node.groups.stats.hosted == 300
    await eventually(lambda: node.groups.stats.hosted == 0)
    await node.groups.stop()
