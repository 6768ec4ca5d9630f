"""Consumers of the consumer protocol (KIP-848), behaving as real clients: they use what they are assigned, and give up
a while later what they are no longer assigned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.machines.groups.consumer_group_events import ConsumerHeartbeat
from stratalog.model.ids import ShardKey
from support.seen_topics import Topics


@dataclass
class Client:
    """A member's process."""

    member_id: str
    instance_id: str | None
    names: tuple[str, ...]
    regex: str
    assignor: str | None
    epoch: int = 0
    owned: frozenset[ShardKey] = frozenset()
    to_give_up: frozenset[ShardKey] = frozenset()
    says_all: bool = True
    asks: dict[int, bool] = field(default_factory=dict)
    """Waiter -> whether the client will hear the answer."""

    def heartbeat(self, waiter: int, topics: Topics) -> ConsumerHeartbeat:
        is_all = self.says_all or self.epoch == 0
        return ConsumerHeartbeat(
            waiter,
            self.member_id,
            self.epoch,
            topics,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000 if is_all else None,
            topic_names=self.names if is_all else None,
            topic_regex=self.regex if is_all else None,
            assignor=self.assignor if is_all else None,
            owned=frozenset() if self.epoch == 0 else self.owned,
        )

    def starts_again(self) -> None:
        self.epoch, self.owned, self.to_give_up, self.says_all = 0, frozenset(), frozenset(), True

    def gives_up(self) -> None:
        self.owned, self.to_give_up = self.owned - self.to_give_up, frozenset()
