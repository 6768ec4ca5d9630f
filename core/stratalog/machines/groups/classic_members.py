"""Members of a consumer group that speak the classic protocol: who they are, and when they must join again.

A JoinGroup is what a heartbeat is for the others: its metadata say what the member subscribes to and what it has. Its
generation is its epoch. Pure; `machines.groups.consumer_group` changes what is to be changed.
Source: docs/group-migration.md section 3; KIP-848, "Supporting Online Consumer Group Upgrade".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratalog.machines.groups.consumer_arrivals import joined_again
from stratalog.machines.groups.consumer_group_events import ClassicJoined, ConsumerLimits, SeenTopics
from stratalog.machines.groups.consumer_roster import ConsumerRoster
from stratalog.machines.groups.group_events import MemberSynced
from stratalog.model.groups.consumer_group import ClassicSide, ConsumerMember, MemberState, PlacesByName
from stratalog.model.groups.group import CONSUMER_PROTOCOL_TYPE, GroupError
from stratalog.model.ids import ShardKey


def classic_arrived(
    roster: ConsumerRoster, limits: ConsumerLimits, event: ClassicJoined
) -> ConsumerMember | GroupError:
    """The member with what it says now; MEMBER_ID_REQUIRED where it is only given its id."""
    join = event.join
    if not limits.min_session_timeout_ms <= join.session_timeout_ms <= limits.max_session_timeout_ms:
        return GroupError.INVALID_SESSION_TIMEOUT
    if join.protocol_type != CONSUMER_PROTOCOL_TYPE or not join.protocols or event.subscription is None:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    found = _found(roster, event)
    if isinstance(found, GroupError):
        return found
    former = roster.former_of(found)
    if former is None and len(roster) >= limits.max_members:
        return GroupError.GROUP_MAX_SIZE_REACHED
    common = roster.offers_of_classic_members("" if former is None else former.member_id)
    if common is not None and common.isdisjoint(protocol.name for protocol in join.protocols):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if not join.member_id and join.instance_id is None and join.requires_known_id:
        return GroupError.MEMBER_ID_REQUIRED
    return replace(
        found,
        rack_id=event.subscription.rack_id,
        client_id=join.client_id,
        client_host=join.client_host,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        topic_names=tuple(sorted(set(event.subscription.topics))),
        topic_regex="",
        assignor="",
        classic=ClassicSide(join.session_timeout_ms, join.protocols),
    )


def _found(roster: ConsumerRoster, event: ClassicJoined) -> ConsumerMember | GroupError:
    join = event.join
    static = roster.of_instance(join.instance_id)
    if not join.member_id:
        # A static member is back in another process: its former self is fenced.
        new = ConsumerMember(join.new_member_id, join.instance_id)
        return new if static is None else joined_again(static, join.new_member_id)
    if join.instance_id is not None:
        if static is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if static.member_id != join.member_id:
            return GroupError.FENCED_INSTANCE_ID
    known = roster.get(join.member_id)
    if known is not None and known.classic is None:
        return GroupError.UNKNOWN_MEMBER_ID
    if known is None and event.subscription is not None and event.subscription.owned:
        return GroupError.UNKNOWN_MEMBER_ID  # it was removed: what it thinks that it owns is others'
    # Another id that is not known was given with MEMBER_ID_REQUIRED, here or while the group was classic.
    return known or ConsumerMember(join.member_id, join.instance_id)


def classic_error(roster: ConsumerRoster, member_id: str, instance_id: str | None, generation: int) -> GroupError:
    """Whether this is a classic member, and in this generation."""
    static = roster.of_instance(instance_id)
    if instance_id is not None and static is not None and static.member_id != member_id:
        return GroupError.FENCED_INSTANCE_ID
    member = roster.get(member_id)
    if member is None or member.classic is None or (instance_id is not None and static is None):
        return GroupError.UNKNOWN_MEMBER_ID
    return GroupError.NONE if generation == member.epoch else GroupError.ILLEGAL_GENERATION


def sync_error(roster: ConsumerRoster, target_epoch: int, event: MemberSynced) -> GroupError:
    error = classic_error(roster, event.member_id, event.instance_id, event.generation)
    if error is not GroupError.NONE:
        return error
    member = roster.by_id[event.member_id]
    if event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if event.protocol_name is not None and event.protocol_name != protocol_of(member):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    # A member that must give up shards has joined already; it does that first, and then joins again.
    is_late = member.epoch < target_epoch and member.state is not MemberState.UNREVOKED
    return GroupError.REBALANCE_IN_PROGRESS if is_late else GroupError.NONE


def protocol_of(member: ConsumerMember) -> str:
    """The protocol that it gets: its first one. None of them assigns, so they need not agree on one."""
    assert member.classic is not None, "of classic members only"
    return member.classic.protocols[0].name


def must_join_again(member: ConsumerMember, target_epoch: int, is_free: Callable[[ShardKey], bool]) -> bool:
    """There is a newer target, or it has shards to give up, or all that it waits for is free."""
    if member.epoch < target_epoch or member.state is MemberState.UNREVOKED:
        return True
    return member.state is MemberState.UNRELEASED and all(is_free(shard) for shard in member.target - member.assigned)


def placed(places: tuple[PlacesByName, ...], topics: SeenTopics) -> frozenset[ShardKey]:
    """Those that are there."""
    found: list[ShardKey] = []
    for name, shards in places:
        seen = topics.topic(name)
        if seen is not None:
            found += [ShardKey(seen.topic_id, shard) for shard in shards if 0 <= shard < seen.shards]
    return frozenset(found)


def unplaced(places: tuple[PlacesByName, ...], topics: SeenTopics) -> set[tuple[str, int]]:
    """Those that are not there: gone, or not known here yet."""
    counts = {name: 0 if (seen := topics.topic(name)) is None else seen.shards for name, _ in places}
    return {(name, shard) for name, shards in places for shard in shards if not 0 <= shard < counts[name]}
