"""A group with members from one protocol to the other: what is known of it in the one, said in the other. Pure.

To the consumer protocol from a stable group only: then what each member holds is what it was assigned, and for a
cooperative member what it said that it owns. To the classic one without assignments: the group rebalances at once.
Source: docs/group-migration.md section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stratalog.machines.groups.assignors import DEFAULT_ASSIGNOR
from stratalog.machines.groups.classic_members import placed
from stratalog.machines.groups.consumer_group_events import SeenTopics
from stratalog.model.groups.consumer_group import (
    ClassicSide,
    ConsumerGroupRecord,
    ConsumerMember,
    MemberState,
    PlacesByName,
    Subscription,
)
from stratalog.model.groups.group import CONSUMER_PROTOCOL_TYPE, GroupRecord, MemberRecord
from stratalog.model.ids import ShardKey


class Said(NamedTuple):
    """What a classic member's bytes mean."""

    subscription: Subscription
    assigned: tuple[PlacesByName, ...]


def upgraded(classic: GroupRecord, said: Mapping[str, Said], topics: SeenTopics) -> ConsumerGroupRecord:
    """Each member at the epoch that equals its generation, with its assignment as its target. No other member may get
    what a cooperative member owns beyond that, before that member joined again. Requires: `said` of every member."""
    taken: set[ShardKey] = set()
    assigned: dict[str, frozenset[ShardKey]] = {}
    for member in classic.members:
        # Corrects a leader's assignment that gave a shard to two members: the first one keeps it. What a member did not
        # subscribe to it would lose at once, and a client that may describe the group would learn that it exists.
        wanted = set(said[member.member_id].subscription.topics)
        places = tuple(one for one in said[member.member_id].assigned if one.topic in wanted)
        assigned[member.member_id] = placed(places, topics) - taken
        taken |= assigned[member.member_id]
    members: dict[str, ConsumerMember] = {}
    for member in classic.members:
        revoking = placed(said[member.member_id].subscription.owned, topics) - taken
        taken |= revoking
        members[member.member_id] = _upgraded(
            member, said[member.member_id].subscription, classic.generation, assigned[member.member_id], revoking
        )
    return ConsumerGroupRecord(0, classic.generation, classic.generation, DEFAULT_ASSIGNOR, {}, members)


def _upgraded(
    member: MemberRecord,
    subscription: Subscription,
    generation: int,
    assigned: frozenset[ShardKey],
    revoking: frozenset[ShardKey],
) -> ConsumerMember:
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        tuple(sorted(set(subscription.topics))),
        epoch=generation,
        previous_epoch=generation,
        state=MemberState.UNREVOKED if revoking else MemberState.STABLE,
        assigned=assigned,
        revoking=revoking,
        target=assigned,
        classic=ClassicSide(member.session_timeout_ms, member.protocols),
    )


def downgraded(group: ConsumerGroupRecord) -> GroupRecord:
    """Requires: classic members only. Its generation is that of the members if they are at the newest epoch but one:
    the departure that makes the group classic was one epoch, and they need not lose what they have for it."""
    members: list[MemberRecord] = []
    for member in group.members.values():
        assert member.classic is not None, "the caller looked"
        members.append(
            MemberRecord(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
                b"",
            )
        )
    generation = max([group.epoch - 1, *(member.epoch for member in group.members.values())])
    leader = members[0].member_id if members else None
    return GroupRecord(generation, CONSUMER_PROTOCOL_TYPE, None, leader, tuple(members))
