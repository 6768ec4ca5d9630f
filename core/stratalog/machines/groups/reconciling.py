"""Moves one member of a consumer group to its target assignment: the steps between what it holds and its target.

STABLE -> UNREVOKED while it must give shards up, until it confirms that -> UNRELEASED while other members still hold
shards of its target -> STABLE. Pure.
Source: KIP-848, "Member epoch and reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from stratalog.model.groups.consumer_group import ConsumerMember, MemberState
from stratalog.model.ids import ShardKey


def reconciled(
    member: ConsumerMember,
    target_epoch: int,
    owned: Set[ShardKey] | None,
    is_free: Callable[[ShardKey], bool],
) -> ConsumerMember:
    """The member after a heartbeat. `owned`: the shards that it says it has, None if it does not say. `is_free`: no
    other member holds the shard."""
    match member.state:
        case MemberState.STABLE if member.epoch == target_epoch:
            return member
        case MemberState.UNREVOKED:
            if owned is None or owned & member.revoking:
                return member
            # Commits that it sent while it had them are fenced from here on.
            return _on_its_way(member, member.epoch + 1, target_epoch, owned, is_free)
        case _:
            return _on_its_way(member, member.epoch, target_epoch, owned, is_free)


def _on_its_way(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    owned: Set[ShardKey] | None,
    is_free: Callable[[ShardKey], bool],
) -> ConsumerMember:
    kept = member.assigned & member.target
    surplus = member.assigned - kept
    if surplus and (owned is None or owned & surplus):
        return _at(member, epoch, MemberState.UNREVOKED, kept, surplus)
    wanted = member.target - kept
    free = frozenset(shard for shard in wanted if is_free(shard))
    state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
    return _at(member, target_epoch, state, kept | free, frozenset())


def _at(
    member: ConsumerMember,
    epoch: int,
    state: MemberState,
    assigned: frozenset[ShardKey],
    revoking: frozenset[ShardKey],
) -> ConsumerMember:
    previous = member.previous_epoch if epoch == member.epoch else member.epoch
    return replace(member, epoch=epoch, previous_epoch=previous, state=state, assigned=assigned, revoking=revoking)
