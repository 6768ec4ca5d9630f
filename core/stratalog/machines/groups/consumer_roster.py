"""The members of one consumer group: their ids, the shards that each holds, and the changes that must be written.
Bookkeeping only; `machines.groups.consumer_group` decides. Cost: O(1), and O(its shards) for a member that changes.
Invariants: no shard is held by two members; an instance id names one member; bytes are counted.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.model.groups.consumer_group import ConsumerMember
from stratalog.model.ids import ShardKey


class ConsumerRoster:
    __slots__ = ("_instances", "_owners", "by_id", "changed", "classic_count", "removed", "size_bytes")

    def __init__(self) -> None:
        self.by_id: dict[str, ConsumerMember] = {}
        self._instances: dict[str, str] = {}
        self._owners: dict[ShardKey, str] = {}
        self.size_bytes = 0
        self.classic_count = 0
        """How many speak the classic protocol."""
        self.changed: dict[str, None] = {}
        """Members that are to be written."""
        self.removed: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, member_id: str) -> ConsumerMember | None:
        return self.by_id.get(member_id)

    def of_instance(self, instance_id: str | None) -> ConsumerMember | None:
        return self.by_id.get(self._instances.get(instance_id or "", ""))

    def former_of(self, member: ConsumerMember) -> ConsumerMember | None:
        """The member as it is here now, under this id or, for a static one, under another."""
        known = self.by_id.get(member.member_id)
        return self.of_instance(member.instance_id) if known is None else known

    def is_free_for(self, member_id: str) -> Callable[[ShardKey], bool]:
        """Whether no other member holds a shard."""
        return lambda shard: self._owners.get(shard, member_id) == member_id

    def offers_of_classic_members(self, but: str) -> set[str] | None:
        """Names of protocols that all classic members offer, one left out; None when there are no others. O(members),
        of a group that has classic members."""
        if not self.classic_count:
            return None
        offers = [
            {protocol.name for protocol in member.classic.protocols}
            for member in self.by_id.values()
            if member.classic is not None and member.member_id != but
        ]
        return set.intersection(*offers) if offers else None

    def put(self, member: ConsumerMember) -> None:
        before = self.by_id.get(member.member_id)
        if before is not None:
            self.size_bytes -= before.size_bytes
            self.classic_count -= before.classic is not None
            for shard in before.held - member.held:
                del self._owners[shard]
        self.by_id[member.member_id] = member
        self.size_bytes += member.size_bytes
        self.classic_count += member.classic is not None
        for shard in member.held - (before.held if before is not None else frozenset()):
            self._owners[shard] = member.member_id
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self.changed[member.member_id] = None

    def drop(self, member_id: str) -> None:
        member = self.by_id.pop(member_id)
        self.size_bytes -= member.size_bytes
        self.classic_count -= member.classic is not None
        for shard in member.held:
            del self._owners[shard]
        if member.instance_id is not None and self._instances.get(member.instance_id) == member_id:
            del self._instances[member.instance_id]
        self.changed.pop(member_id, None)
        self.removed[member_id] = None

    def check_invariants(self) -> None:
        held = [shard for member in self.by_id.values() for shard in member.held]
        assert len(held) == len(set(held)) == len(self._owners), "a shard is held by two members"
        assert self.size_bytes == sum(member.size_bytes for member in self.by_id.values())
        assert self.classic_count == sum(member.classic is not None for member in self.by_id.values())
        for member in self.by_id.values():
            assert self._instances.get(member.instance_id or "", member.member_id) == member.member_id
