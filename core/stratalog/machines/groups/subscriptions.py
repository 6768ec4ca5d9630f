"""The topics that the members of a consumer group subscribe to, resolved once for all members with the same
subscription. Plain data. Cost: O(members) for an update, and O(topics) for each subscription that is new, or at another
version of the topics. Regular expressions are looked up again when one of the clients that ask may see other topics.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from stratalog.machines.groups.consumer_group_events import SeenTopics
from stratalog.model.groups.consumer_group import ConsumerMember

Wish: TypeAlias = tuple[tuple[str, ...], str]
"""Names of topics, and a regular expression."""

_NO_TOPICS_SEEN = -1
_MOST_VIEWS = 1_000


class Subscriptions:
    __slots__ = ("_found", "_version", "_views")

    def __init__(self) -> None:
        self._found: dict[Wish, Mapping[UUID, int]] = {}
        """What present members wish for -> those topics with their shards, at the version known."""
        self._version = _NO_TOPICS_SEEN
        self._views: dict[str, Hashable] = {}
        """What clients could see at that version, of those that asked since."""

    def __len__(self) -> int:
        return len(self._found)

    def is_of(self, topics: SeenTopics) -> bool:
        """Topics were neither created nor deleted nor extended since the last update, and the client that asks may see
        the same ones as when it asked before."""
        if topics.version != self._version:
            return False
        view = topics.view
        if view is None:
            return True
        if len(self._views) >= _MOST_VIEWS and view[0] not in self._views:
            self._views.clear()
        return self._views.setdefault(*view) == view[1]

    def update(self, members: Iterable[ConsumerMember], topics: SeenTopics) -> Mapping[UUID, int]:
        """All topics that one of them subscribes to, with their shards."""
        known: Mapping[Wish, Mapping[UUID, int]] = {}
        if self.is_of(topics):
            known = self._found
        elif topics.version == self._version:
            known = {wish: found for wish, found in self._found.items() if not wish[1]}
        if topics.version != self._version:
            self._views.clear()
        self._version = topics.version
        if (view := topics.view) is not None:
            self._views[view[0]] = view[1]
        wishes = {subscription_of(member) for member in members}
        self._found = {wish: known[wish] if wish in known else _found(wish, topics) for wish in wishes}
        return {topic_id: count for found in self._found.values() for topic_id, count in found.items()}

    def topic_ids(self) -> Mapping[Wish, frozenset[UUID]]:
        """By subscription, as of the last update."""
        return {wish: frozenset(found) for wish, found in self._found.items()}


def subscription_of(member: ConsumerMember) -> Wish:
    return member.topic_names, member.topic_regex


def _found(wish: Wish, topics: SeenTopics) -> Mapping[UUID, int]:
    names: Iterable[str] = wish[0]
    if wish[1]:
        names = {*names, *topics.matching(wish[1])}
    return dict(found for name in names if (found := topics.topic(name)) is not None)
