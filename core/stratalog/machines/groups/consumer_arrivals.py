"""Identifies the sender of a consumer-protocol heartbeat: a present member, a new one, or one that is refused. Pure;
`machines.groups.consumer_group` makes the changes.
Source: KIP-848, "Member ID", "Static Membership"; docs/kafka.md "Groups".
"""

from __future__ import annotations

from dataclasses import replace

from stratalog.machines.groups.consumer_group_events import ConsumerAnswer, ConsumerHeartbeat, ConsumerLimits
from stratalog.machines.groups.consumer_roster import ConsumerRoster
from stratalog.model.counting import counted
from stratalog.model.groups.consumer_group import LEFT_FOR_A_WHILE, ConsumerMember, MemberState
from stratalog.model.groups.group import GroupError
from stratalog.model.ids import ShardKey

JOINS, LEAVES = 0, -1


def arrived(
    roster: ConsumerRoster, limits: ConsumerLimits, event: ConsumerHeartbeat
) -> ConsumerMember | ConsumerAnswer:
    """The member as it was, or as a new one begins; or why it is refused."""
    known = roster.get(event.member_id)
    if event.instance_id is not None:
        if known is not None and known.instance_id != event.instance_id:
            why = f"{event.member_id!r} is a member already, and not as instance {event.instance_id!r}"
            return ConsumerAnswer(GroupError.INVALID_REQUEST, why)
        static = roster.of_instance(event.instance_id)
        if event.member_epoch == JOINS and static is not None and static.member_id != event.member_id:
            if static.epoch != LEFT_FOR_A_WHILE and static.classic is None:
                why = f"instance {event.instance_id!r} is a member already, as {static.member_id}"
                return ConsumerAnswer(GroupError.UNRELEASED_INSTANCE_ID, why)
            return joined_again(static, event.member_id)
        if event.member_epoch > 0 and static is not None and static.member_id != event.member_id:
            why = f"instance {event.instance_id!r} is {static.member_id} now"
            return ConsumerAnswer(GroupError.FENCED_INSTANCE_ID, why)
    if known is None or (known.classic is not None and event.member_epoch > 0):
        if event.member_epoch > 0:
            why = f"{event.member_id!r} is not a member: it was silent for too long, or has left"
            return ConsumerAnswer(GroupError.UNKNOWN_MEMBER_ID, why)
        if len(roster) >= limits.max_members:
            why = f"the group has {counted(len(roster), 'member')}, the most there may be"
            return ConsumerAnswer(GroupError.GROUP_MAX_SIZE_REACHED, why)
        return ConsumerMember(event.member_id, event.instance_id)
    if event.member_epoch == JOINS:
        return joined_again(known, known.member_id)
    if event.member_epoch == known.epoch:
        return known
    # An answer that told it of a newer epoch may have been lost: it has no more than it was given by then.
    is_behind = event.member_epoch == known.previous_epoch and event.member_epoch < known.epoch
    if is_behind and event.owned is not None and event.owned <= known.held:
        return known
    why = f"epoch {event.member_epoch} is not the member's, which is {known.epoch}: it is to join again"
    return ConsumerAnswer(GroupError.FENCED_MEMBER_EPOCH, why)


def joined_again(member: ConsumerMember, member_id: str) -> ConsumerMember:
    """It has nothing yet, so what it was to give up is free; what it may have is kept for it."""
    nothing = frozenset[ShardKey]()
    return replace(
        member,
        member_id=member_id,
        epoch=0,
        previous_epoch=0,
        state=MemberState.STABLE,
        revoking=nothing,
        classic=None,
    )


def with_subscription(member: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
    return replace(
        member,
        rack_id=member.rack_id if event.rack_id is None else event.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms or member.rebalance_timeout_ms,
        topic_names=member.topic_names if event.topic_names is None else tuple(sorted(set(event.topic_names))),
        topic_regex=member.topic_regex if event.topic_regex is None else event.topic_regex,
        assignor=member.assignor if event.assignor is None else event.assignor,
    )
