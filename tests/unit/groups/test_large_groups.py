"""A group of thousands: what a join and a return cost does not grow with those who are there already."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stratalog.machines.groups.group_members import Member, Roster
from stratalog.model.groups.group import GroupError
from support.group_node import GroupNode, joining, syncing, task
from support.loop_turns import Turns

MEMBERS = 2_000


class Visits:
    """How many members the machine has looked at one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = Roster.__iter__

        def watched(roster: Roster) -> Iterator[Member]:
            for member in real(roster):
                self.count += 1
                yield member

        monkeypatch.setattr(Roster, "__iter__", watched)


@pytest.mark.fault("group-ten-thousand-members")
async def test_thousands_join_and_one_returns_at_the_cost_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await GroupNode(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=3_000).start()
    visits = Visits(monkeypatch)
    joins = [
        task(node.groups.join(joining("g", f"c{n}", instance_id=f"i{n}", session_timeout_ms=1_000_000)))
        for n in range(MEMBERS)
    ]
    await node.settle()
    assert visits.count < 3 * MEMBERS, "a join looks at all who are there"
    async with Turns(lambda: sum(join.done() for join in joins)) as turns:
        while not all(join.done() for join in joins):
            await node.wait(3_000)
    assert turns.most <= 500, "all members were answered in one turn"
    joined = [join.result() for join in joins]
    assert {answer.error for answer in joined} == {GroupError.NONE}
    assert max(len(answer.members) for answer in joined) == MEMBERS
    leader = next(answer.member_id for answer in joined if answer.members)
    syncs = [
        task(node.groups.sync(syncing("g", answer.member_id, 1, **({leader: b"x"} if answer.members else {}))))
        for answer in joined
    ]
    assert {answer.error for answer in await asyncio.gather(*syncs)} == {GroupError.NONE}
    visits.count = 0
    size_bytes = node.groups.stats.append_bytes
    for n in range(100, 200):
        back = await node.groups.join(joining("g", f"c{n}", instance_id=f"i{n}", session_timeout_ms=1_000_000))
        assert back.error is GroupError.NONE and back.generation == 1
    assert visits.count == 0, "a return looks at everyone"
    assert node.groups.stats.append_bytes - size_bytes < 100 * 500, "a return writes everyone"
    await node.kill()
    described = await node.groups.describe("g")
    assert len(described.status.members) == MEMBERS
    assert back.member_id in {member.member_id for member in described.status.members}
    assert joined[199].member_id not in {member.member_id for member in described.status.members}


@pytest.mark.fault("group-ten-thousand-members")
async def test_a_static_leader_that_returned_leads_after_a_restart_too() -> None:
    node = await GroupNode().start()
    first = await node.groups.join(joining("g", "a", instance_id="one"))
    await node.groups.sync(syncing("g", first.member_id, 1, **{first.member_id: b"work"}))
    back = await node.groups.join(joining("g", "a", instance_id="one"))
    await node.kill()
    assert (await node.groups.describe("g")).status.leader == back.member_id
    assert (await node.groups.sync(syncing("g", back.member_id, 1))).assignment == b"work"
    assert await node.groups.heartbeat("g", first.member_id, None, 1) is GroupError.UNKNOWN_MEMBER_ID
