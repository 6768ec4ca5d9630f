"""A group coordinator over shards in memory, with clocks that the test moves; a restart keeps what is in the shards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast
from uuid import UUID, uuid5

from stratalog.machines.copies.internal_topics import is_reserved, settings_to_create
from stratalog.machines.tiering.age_clock import AgeClock
from stratalog.model.commands.table_commands import AdvanceLogStart, Command, CreateTopic
from stratalog.model.errors import AlreadyExists, StratalogError
from stratalog.model.groups.group import MemberProtocol
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Node, TopicChanged, TopicDeleted
from stratalog.model.topic import Topic
from stratalog.settings.process import ProcessSettings
from stratalog_node.groups.coordinator import CoordinatorLimits, GroupCoordinator
from stratalog_node.groups.placement import OFFSETS_TOPIC
from stratalog_node.groups.requests import CommitRequest, ConsumerRequest, JoinRequest, OffsetToCommit, SyncRequest
from stratalog_node.serve.connections.consumer_codec import CONSUMER_CODEC
from support.memory_shard import MemoryShard

R = TypeVar("R")
_T = TypeVar("_T")
_NAMES = UUID("6b1d5b0e-0c1f-4f0a-9a53-000000000000")
START_MS = 1_700_000_000_000


class Topics:
    """A catalog of topics."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.births = 0
        self.version = 0

    def add(self, name: str, shard_count: int = 4, settings: Mapping[str, str] | None = None) -> Topic:
        self.births += 1
        self.version += 1
        topic_id = uuid5(_NAMES, f"{name}{self.births}")
        topic = Topic(name, topic_id, shard_count, 1, settings or {}, START_MS, is_internal=is_reserved(name))
        self.by_name[name] = topic
        return topic

    def topic(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def topics(self) -> list[Topic]:
        return list(self.by_name.values())

    def has_shard(self, key: ShardKey) -> bool:
        return self.topic_by_id(key.topic_id) is not None

    def leader_of(self, key: ShardKey) -> tuple[int, int] | None:
        return 1, 0

    def nodes(self) -> list[Node]:
        return [Node(1, "storage-1", "host", 9092)]

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.by_name.values() if topic.topic_id == topic_id), None)


class GroupNode:
    """One node: `groups` is its coordinator, `shards` what survives it."""

    def __init__(self, *, limits: CoordinatorLimits | None = None, **settings: Any) -> None:
        defaults = {
            "group_initial_rebalance_delay_ms": 0,
            "group_min_session_timeout_ms": 1_000,
            "offsets_topic_num_partitions": 2,
        }
        self.settings = ProcessSettings(**(defaults | settings))
        self.node_id = 1
        self.heard_ms = 0
        self.lease_ms = 0
        self.is_given_up = False
        """A person gave up the unreadable parts of the group log."""
        self.limits = limits or CoordinatorLimits()
        self.topics = Topics()
        self.topics.add("orders")
        self.topics.add("clicks")
        self.shards: dict[ShardKey, MemoryShard] = {}
        self.trims: list[tuple[int, int]] = []
        self.meta_version: int | StratalogError | None = None
        """What the meta service says its newest version is; None: that of the catalog."""
        self.monotonic_ms = 50_000
        self.wall_ms = START_MS
        self.loop_s = 0.0
        self.age = AgeClock(None, self.wall_ms, self.monotonic_ms)
        self.member_ids = 0
        self.groups = self._coordinator()

    def _coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            node_id=self.node_id,
            settings=self.settings,
            topics=self.topics,
            meta=self,
            led_shard=self._led_shard,
            wall_ms=lambda: self.wall_ms,
            age_ms=lambda: self.age.advance(self.wall_ms, self.monotonic_ms),
            monotonic_ms=lambda: self.monotonic_ms,
            heard_ms=lambda: self.heard_ms,
            lease_ms=lambda: self.lease_ms,
            loop_s=lambda: self.loop_s,
            new_member_id=self._new_member_id,
            words=CONSUMER_CODEC,
            limits=self.limits,
            is_lost=lambda segment: self.is_given_up,
        )

    def _led_shard(self, key: ShardKey) -> MemoryShard | None:
        shard = self.shards.get(key)
        return shard if shard is not None and shard.is_led else None

    def _new_member_id(self, prefix: str) -> str:
        self.member_ids += 1
        return f"{prefix}-{self.member_ids}"

    # The meta service, as far as groups ask it ------------------------------------------------------------------
    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        match command:
            case CreateTopic(name, shard_count, _, settings, is_internal):
                if name in self.topics.by_name:
                    raise AlreadyExists(f"topic {name} exists")
                fixed = settings_to_create(name, settings, is_internal=is_internal)
                topic = self.topics.add(name, shard_count, fixed)
                for index in range(shard_count):
                    self.shards[ShardKey(topic.topic_id, index)] = MemoryShard(topic, index)
                return cast("R", topic)
            case AdvanceLogStart(shard, offset):
                self.trims.append((shard.shard, offset))
                self.shards[shard].trim(offset)
                return cast("R", None)  # groups do not look at the shard
        raise AssertionError(f"groups do not ask for {command}")

    async def read_version(self) -> int:
        if isinstance(self.meta_version, StratalogError):
            raise self.meta_version
        return self.topics.version if self.meta_version is None else self.meta_version

    # What tests do ----------------------------------------------------------------------------------------------
    async def start(self) -> GroupNode:
        await self.groups.start()
        await self.groups.ensure_ready()
        return self

    async def kill(self) -> None:
        """The process is gone: it flushes nothing and answers no request. A new one starts over the same shards."""
        old = self.groups
        for shard in self.shards.values():
            shard.is_led = False
            shard.release()
        for _ in range(5):
            await asyncio.sleep(0)
        await old.stop()
        for shard in self.shards.values():
            shard.is_led = True
        self.groups = self._coordinator()
        await self.groups.start()
        for index in range(self.settings.offsets_topic_num_partitions):
            await self.groups.load(index)

    def shard_of(self, group_id: str) -> MemoryShard:
        key = self.groups.shard_key_of(group_id)
        assert key is not None
        return self.shards[key]

    def delete_topic(self, name: str) -> None:
        topic = self.topics.by_name.pop(name)
        self.groups.on_change(TopicDeleted(topic))

    def recreate_topic(self, name: str) -> None:
        self.delete_topic(name)
        self.topics.add(name)

    def grow_topic(self, name: str, shard_count: int) -> None:
        topic = self.topics.by_name[name] = replace(self.topics.by_name[name], shard_count=shard_count)
        self.topics.version += 1
        self.groups.on_change(TopicChanged(topic))

    async def wait(self, span_ms: int) -> None:
        """Let time pass on both clocks."""
        self.monotonic_ms += span_ms
        self.wall_ms += span_ms
        self.groups.membership.run_due()
        await self.settle()

    async def grow_older(self, span_ms: int) -> None:
        """Time passes on both clocks without waking any timer: sessions do not end, data ages."""
        self.monotonic_ms += span_ms
        self.wall_ms += span_ms
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def offsets_topic_of(node: GroupNode) -> Topic:
    topic = node.topics.topic(OFFSETS_TOPIC)
    assert topic is not None
    return replace(topic)


def joining(group_id: str, client: str, member_id: str = "", **changes: Any) -> JoinRequest:
    request = JoinRequest(
        group_id=group_id,
        member_id=member_id,
        instance_id=None,
        client_id=client,
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=(MemberProtocol("range", subscription("orders")),),
        requires_known_id=False,
        can_skip_assignment=True,
    )
    return replace(request, **changes)


def beating(group_id: str, member_id: str, epoch: int = 0, **changes: Any) -> ConsumerRequest:
    """A heartbeat of the consumer protocol; with epoch 0 one that joins."""
    joins = {"rebalance_timeout_ms": 30_000, "topic_names": ("orders",), "owned": frozenset()} if epoch == 0 else {}
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(ConsumerRequest))
    asked = {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, "client_id": "", "client_host": ""}
    return ConsumerRequest(**(nothing | asked | joins | changes))


def syncing(group_id: str, member_id: str, generation: int, **given: bytes) -> SyncRequest:
    return SyncRequest(group_id, member_id, None, generation, "consumer", "range", tuple(given.items()))


def committing(group_id: str, *places: tuple[str, int, int], **changes: Any) -> CommitRequest:
    """Places are (topic, shard, offset)."""
    offsets = tuple(OffsetToCommit(topic, shard, offset, 3, f"at {offset}") for topic, shard, offset in places)
    return replace(CommitRequest(group_id, offsets), **changes)


def subscription(*topics: str) -> bytes:
    """What a consumer sends as its protocol metadata."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def task(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    return asyncio.get_running_loop().create_task(work)
