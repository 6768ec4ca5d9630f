"""Changes topics so that no change undoes another: on a node, the only way from "set this key" to the settings as a
whole.

The meta service takes a topic's settings as a whole, with its number of shards, in one transaction; this checks how
settings must relate, over this node's defaults. So a change reads what the meta service has (the catalog may be
behind), is applied and checked, and is written only if nothing else was written meanwhile. Otherwise it is repeated
over the present settings.
Changes of one topic through this node, by clients or by HTTP, wait for each other: a thousand at once cost a write
each. Only changes through other nodes can force a repetition.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from uuid import UUID
from weakref import WeakValueDictionary

from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import AlterTopic
from stratalog.model.errors import Conflict
from stratalog.model.topic import Topic
from stratalog.settings.kafka_names import under_our_names
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings

_ATTEMPTS = 50
"""Each that fails is one in which another node's change was done."""

Change = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the present settings the new ones; may be called more than once. What it raises ends the change."""


class TopicChanges:
    def __init__(self, meta: MetaClient, settings: ProcessSettings) -> None:
        self._meta = meta
        self._settings = settings
        self._lines: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def alter(
        self, topic_id: UUID, change: Change, *, shard_count: int | None = None, is_trial: bool = False
    ) -> Topic:
        """Change the settings, and with `shard_count` grow the topic to that number of shards: both, or nothing.
        Returns the topic as it is then; a trial changes nothing.

        Raises: InvalidRequest, LimitExceeded, Reserved (nothing was done), NotFound, Conflict (other nodes keep
        changing this topic), Unavailable, OutcomeUnknown.
        """
        line = self._lines.get(topic_id)
        if line is None:
            line = self._lines[topic_id] = asyncio.Lock()
        async with line:
            for attempt in range(_ATTEMPTS):
                topic = await self._meta.topic(topic_id)
                present = dict(topic.settings)
                wanted = under_our_names(change(present), present)
                if wanted != present:
                    TopicSettings.validate_overrides(wanted, self._settings, present)
                elif shard_count is None:
                    return topic
                if is_trial:
                    return topic
                try:
                    return await self._meta.perform(
                        AlterTopic(topic_id, wanted, expected=present, shard_count=shard_count)
                    )
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
        raise AssertionError("the last attempt returns or raises")
