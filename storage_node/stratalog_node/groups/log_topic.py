"""The internal topic of the group log: made when the first group is asked for, given more replicas as nodes come.

Any node may be the first that is asked: they all send the same command, and the meta service makes the topic once. It
is made with as many replicas as are wanted and as there are living nodes. When more nodes live than that, the node that
leads shard 0 asks for the missing replicas; each shard gets them at its next roll.
Thread: the event loop. Cost: a check of the nodes for each change of the metadata that concerns them or the group log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from uuid import UUID

from stratalog.event_loop.task_set import TaskSet
from stratalog.meta_api.client import CommandTaker
from stratalog.model.commands.table_commands import CreateTopic, WidenTopic
from stratalog.model.errors import AlreadyExists, StratalogError, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.groups.offsets import Topics
from stratalog_node.groups.placement import OFFSETS_TOPIC
from stratalog_node.shards.catalog.wait import catalog_shows

_log = logger(__name__)

_SHOWN_TIMEOUT_MS = 5_000
_PATIENCE_S = 15.0
"""A request for a group waits no longer than this for the topic. Its creation continues."""


class LogTopic:
    """`settled` is awaited once the topic is in the catalog: what this node leads of it may be taken over then."""

    def __init__(
        self,
        *,
        node_id: int,
        settings: ProcessSettings,
        topics: Topics,
        meta: CommandTaker,
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._settings = settings
        self._topics = topics
        self._meta = meta
        self._settled = settled
        self._making: asyncio.Task[None] | None = None
        self._widening: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()

    @property
    def topic(self) -> Topic | None:
        """None before it exists, as far as this node knows."""
        return self._topics.topic(OFFSETS_TOPIC)

    async def ensure(self) -> None:
        """See that it exists. Raises: Unavailable, OutcomeUnknown: who asked tries again."""
        if self.topic is not None:
            return
        if self._making is None:
            self._making = self._tasks.start(self._make(), name="group-log-create")
        making = self._making
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.shield(making)
        except TimeoutError:
            words = f"topic {OFFSETS_TOPIC} was not made within {_PATIENCE_S:g} s: the meta service is still asked"
            raise Unavailable(words) from None

    async def _make(self) -> None:
        try:
            with contextlib.suppress(AlreadyExists):
                await self._meta.perform(
                    CreateTopic(
                        OFFSETS_TOPIC,
                        shard_count=self._settings.offsets_topic_num_partitions,
                        replication_factor=self._settings.offsets_topic_replication_factor,
                        settings={},
                        is_internal=True,
                    )
                )
            if await catalog_shows(self._is_shown, _SHOWN_TIMEOUT_MS):
                await self._settled()
        finally:
            self._making = None

    def _is_shown(self) -> bool:
        """With all its shards: a large change comes in steps."""
        topic = self.topic
        return topic is not None and self._topics.has_shard(ShardKey(topic.topic_id, topic.shard_count - 1))

    def widen_if_due(self) -> None:
        """There may be more nodes than there were."""
        topic = self.topic
        if topic is None or self._widening is not None or not self._is_too_narrow(topic):
            return
        led = self._topics.leader_of(ShardKey(topic.topic_id, 0))
        if led is not None and led[0] == self._node_id:
            self._widening = self._tasks.start(self._widen(topic.topic_id), name="group-log-widen")

    def _is_too_narrow(self, topic: Topic) -> bool:
        living = sum(node.is_alive for node in self._topics.nodes())
        return topic.replication_factor < min(self._settings.offsets_topic_replication_factor, living)

    async def _widen(self, topic_id: UUID) -> None:
        backoff = Backoff()
        try:
            while (topic := self.topic) is not None and topic.topic_id == topic_id and self._is_too_narrow(topic):
                try:
                    await self._meta.perform(WidenTopic(topic_id, self._settings.offsets_topic_replication_factor))
                except StratalogError as failure:
                    _log.warning("the group log has fewer replicas than there are nodes for", reason=str(failure))
                await backoff.pause()  # the catalog shows it soon
        finally:
            self._widening = None
