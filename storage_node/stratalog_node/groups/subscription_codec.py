"""How classic consumers put into bytes what they subscribe to and what they get: given to the groups from outside, for
they know no wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.model.groups.consumer_group import PlacesByName, Subscription
from stratalog.model.groups.group import MemberProtocol

_MAX_METADATA_BYTES: Final = 1 << 20
"""Limit for one member of a consumer group: each JoinGroup is read."""


@dataclass(frozen=True, slots=True)
class SubscriptionCodec:
    """Each reader answers None for bytes that are something else."""

    subscribed_topics: Callable[[bytes], frozenset[str] | None]
    read_subscription: Callable[[bytes], Subscription | None]
    read_assignment: Callable[[bytes], tuple[PlacesByName, ...] | None]
    write_assignment: Callable[[Iterable[PlacesByName]], bytes]

    def wishes(self, protocols: Sequence[MemberProtocol]) -> Subscription | None:
        """What a member of a consumer group says with its JoinGroup: by its first protocol."""
        if not protocols or len(protocols[0].metadata) > _MAX_METADATA_BYTES:
            return None
        return self.read_subscription(protocols[0].metadata)
