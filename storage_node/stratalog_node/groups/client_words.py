"""How classic consumers put into bytes what they subscribe to and what they get: given to the groups from outside, for
they know no wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stratalog.model.consumer_group import PlacesByName, Subscription


@dataclass(frozen=True, slots=True)
class ClientWords:
    """Each reader answers None for bytes that are something else."""

    subscribed_topics: Callable[[bytes], frozenset[str] | None]
    read_subscription: Callable[[bytes], Subscription | None]
    read_assignment: Callable[[bytes], tuple[PlacesByName, ...] | None]
    write_assignment: Callable[[Iterable[PlacesByName]], bytes]
