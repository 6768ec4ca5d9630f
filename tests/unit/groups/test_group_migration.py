"""Groups that change their protocol while they have members: both ways, what is refused, and kills between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.kafka.subscription import read_assignment, write_assignment
from stratalog.machines.groups.group_events import JoinAnswer, LeavingMember
from stratalog.model.errors import Unavailable
from stratalog.model.groups.consumer_group import PlacesByName
from stratalog.model.groups.group import GroupError, MemberProtocol
from stratalog_node.groups.requests import SyncRequest
from support.group_node import GroupNode, beating, committing, joining, subscription, syncing, task

OK = GroupError.NONE
ALL = (0, 1, 2, 3)


def shares(*shards: int) -> bytes:
    return write_assignment([PlacesByName("orders", shards)])


async def classic(node: GroupNode, *owned: int) -> JoinAnswer:
    """A classic group of one member that has all shards, or these."""
    joined = await node.groups.join(joining("g", "old"))
    synced = await node.groups.sync(
        syncing("g", joined.member_id, joined.generation, **{joined.member_id: shares(*(owned or ALL))})
    )
    assert (joined.error, synced.error) == (OK, OK)
    return joined


async def share_of(node: GroupNode, joined: JoinAnswer) -> tuple[int, ...]:
    request = SyncRequest("g", joined.member_id, None, joined.generation, "consumer", "range", ())
    synced = await node.groups.sync(request)
    assert synced.error is OK
    return tuple(shard for place in read_assignment(synced.assignment) or () for shard in place.shards)


async def kind(node: GroupNode) -> str:
    (group,) = (await node.groups.list_groups()).groups
    return group.group_type


async def mixed(node: GroupNode) -> tuple[JoinAnswer, int]:
    """A classic member and a consumer member, two shards each."""
    old = await classic(node)
    new = await node.groups.consumers.heartbeat(beating("g", "new"))
    assert (new.error, new.member_epoch, new.assignment) == (OK, old.generation + 1, frozenset())
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is GroupError.REBALANCE_IN_PROGRESS
    again = await node.groups.join(joining("g", "old", old.member_id))
    assert (again.generation, again.leader) == (new.member_epoch, "")
    assert len(await share_of(node, again)) == 2
    given = await node.groups.consumers.heartbeat(beating("g", "new", new.member_epoch))
    assert len(given.assignment or ()) == 2
    return again, new.member_epoch


async def test_a_consumer_member_makes_a_consumer_group_of_a_classic_one_and_its_departure_a_classic_one_again() -> (
    None
):
    node = await GroupNode().start()
    old, _ = await mixed(node)
    assert await kind(node) == "consumer"
    assert await node.groups.commit_offsets(
        committing("g", ("orders", 0, 5), member_id=old.member_id, generation=old.generation)
    ) == [OK]
    assert (await node.groups.consumers.heartbeat(beating("g", "new", -1))).error is OK
    assert await kind(node) == "classic"
    late = committing("g", ("orders", 0, 6), member_id=old.member_id, generation=old.generation)
    assert await node.groups.commit_offsets(late) == [OK], "it has them until it joins again"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is GroupError.REBALANCE_IN_PROGRESS
    again = await node.groups.join(joining("g", "old", old.member_id))
    assert (again.error, again.leader) == (OK, old.member_id)
    assert again.generation > old.generation


async def test_a_killed_coordinator_continues_with_members_of_both_protocols() -> None:
    node = await GroupNode().start()
    old, epoch = await mixed(node)
    await node.kill()
    assert await kind(node) == "consumer"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is OK
    assert (await node.groups.consumers.heartbeat(beating("g", "new", epoch))).error is OK
    assert len(await share_of(node, old)) == 2


@pytest.mark.fault("consumers-move-protocol-group")
async def test_a_coordinator_that_is_killed_before_the_classic_group_is_written_makes_it_classic_again() -> None:
    node = await GroupNode().start()
    old, _ = await mixed(node)
    await node.groups.consumers.heartbeat(beating("g", "new", -1))
    await node.kill()
    assert await kind(node) == "classic"
    again = await node.groups.join(joining("g", "old", old.member_id))
    assert (again.error, again.leader) == (OK, old.member_id)


async def test_a_consumer_member_that_is_silent_leaves_a_classic_group() -> None:
    node = await GroupNode(group_consumer_session_timeout_ms=5_000).start()
    await mixed(node)
    await node.wait(5_001)
    assert await kind(node) == "classic"


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
async def test_a_policy_without_upgrades_refuses_consumer_members_while_there_are_classic_ones(policy: str) -> None:
    node = await GroupNode(group_consumer_migration_policy=policy).start()
    old = await classic(node)
    refused = await node.groups.consumers.heartbeat(beating("g", "new"))
    assert refused.error is GroupError.INCONSISTENT_GROUP_PROTOCOL and "classic protocol" in (refused.message or "")
    await node.groups.leave("g", [LeavingMember(old.member_id, None)])
    await node.settle()
    assert (await node.groups.consumers.heartbeat(beating("g", "new"))).error is OK, "it has no members"


async def test_a_policy_without_downgrades_keeps_a_consumer_group() -> None:
    node = await GroupNode(group_consumer_migration_policy="upgrade").start()
    old, _ = await mixed(node)
    await node.groups.consumers.heartbeat(beating("g", "new", -1))
    assert await kind(node) == "consumer"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is GroupError.REBALANCE_IN_PROGRESS
    assert await share_of(node, await node.groups.join(joining("g", "old", old.member_id))) == ALL


async def test_a_member_that_joins_while_a_classic_group_rebalances_must_retry() -> None:
    node = await GroupNode().start()
    await node.groups.join(joining("g", "old"))
    answer = await node.groups.consumers.heartbeat(beating("g", "new"))
    assert answer.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    assert await kind(node) == "classic"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol_type": "connect"},
        {"protocols": (MemberProtocol("range", b"something else"),)},
        {"protocols": (MemberProtocol("range", subscription(*(f"{n:06}" for n in range(140_000)))),)},
        {"protocols": (MemberProtocol("range", subscription(*(f"{n:05x}" for n in range(149_000)))),)},
    ],
)
async def test_members_that_are_not_consumers_or_send_too_much_are_left_alone(changes: dict[str, object]) -> None:
    node = await GroupNode().start()
    joined = await node.groups.join(replace(joining("g", "old"), **changes))  # type: ignore[arg-type]
    request = SyncRequest("g", joined.member_id, None, joined.generation, None, None, ((joined.member_id, b""),))
    assert (await node.groups.sync(request)).error is OK
    answer = await node.groups.consumers.heartbeat(beating("g", "new"))
    assert answer.error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert await node.groups.heartbeat("g", joined.member_id, None, joined.generation) is OK


async def test_a_refused_member_converts_nothing() -> None:
    node = await GroupNode().start()
    old = await classic(node)
    refused = await node.groups.consumers.heartbeat(beating("g", "new", assignor="mine"))
    assert refused.error is GroupError.UNSUPPORTED_ASSIGNOR
    assert await kind(node) == "classic"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is OK


async def test_no_answer_is_sent_before_the_conversion_of_the_group_is_written() -> None:
    node = await GroupNode().start()
    await classic(node)
    node.shard_of("g").hold()
    joins = task(node.groups.consumers.heartbeat(beating("g", "new")))
    await node.settle()
    assert not joins.done()
    node.shard_of("g").release()
    assert (await joins).error is OK


@pytest.mark.fault("consumers-move-protocol-group")
async def test_a_conversion_that_is_not_in_the_log_has_not_happened_for_the_next_coordinator() -> None:
    node = await GroupNode().start()
    old = await classic(node)
    node.shard_of("g").fail(Unavailable("the disk is slow"))
    assert (await node.groups.consumers.heartbeat(beating("g", "new"))).error is not OK
    await node.kill()
    assert await kind(node) == "classic"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is OK


@pytest.mark.fault("node-catalog-moves-group")
async def test_shards_that_classic_members_have_of_a_grown_topic_stay_theirs() -> None:
    """Their leader saw it at another node, and this coordinator's catalog is behind."""
    node = await GroupNode().start()
    old = await classic(node, *ALL, 4, 5)
    node.meta_version = node.topics.version + 1
    joins = task(node.groups.consumers.heartbeat(beating("g", "new")))
    await node.settle()
    assert not joins.done()
    node.grow_topic("orders", 6)
    new = await joins
    assert (new.error, new.assignment) == (OK, frozenset())
    again = await node.groups.consumers.heartbeat(beating("g", "new", new.member_epoch))
    assert not again.assignment, "the classic member has all six"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is GroupError.REBALANCE_IN_PROGRESS


@pytest.mark.fault("node-catalog-moves-group")
async def test_a_group_is_not_moved_while_its_members_assignment_is_unknown() -> None:
    node = await GroupNode().start()
    old = await classic(node, *ALL, 4)
    node.meta_version = Unavailable("away")
    answer = await node.groups.consumers.heartbeat(beating("g", "new"))
    assert answer.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
    assert await kind(node) == "classic"
    assert await node.groups.heartbeat("g", old.member_id, None, old.generation) is OK
    node.meta_version = None
    assert (await node.groups.consumers.heartbeat(beating("g", "new"))).error is OK, "there is no such shard"
