"""Topics as consumer groups see them: each is named by one letter."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from uuid import UUID

from stratalog.machines.groups.consumer_group_events import SeenTopic


class Topics:
    """Changed by `counts`, with a new `version` each time."""

    def __init__(self) -> None:
        self.version = 0
        self.view: tuple[str, Hashable] | None = None
        """The client that asks, and what changes with its rights."""
        self.lookups: list[str] = []
        self.counts: dict[str, int] = {"a": 3, "b": 1}

    def name_of(self, topic_id: UUID) -> str:
        return chr(topic_id.int)

    def topic(self, name: str) -> SeenTopic | None:
        return SeenTopic(UUID(int=ord(name)), self.counts[name]) if name in self.counts else None

    def matching(self, regex: str) -> Collection[str]:
        self.lookups.append(regex)
        return [name for name in self.counts if regex == "all" or name == regex]
