"""Finds successors for the segments that this node leads: it asks the meta service for the next leader and replicas
before a segment is full.

If the service could not confirm a roll quickly, clients that write behind it would wait until it is back. So a
successor counts only for a moment after the service was last heard: when it gave the successor, or answered a
heartbeat. After that it is asked again, and the segment rolls with its answer; meanwhile clients keep writing to the
old segment without waiting. Asking again does not change the service's state, and returns another successor when one of
the named nodes is dead. A roll that found no successor happens once one is known. The only node of a cluster asks
nothing.
Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.leading.chain_events import ChainEvent, SuccessorNamed, SuccessorUnknown
from stratalog.machines.leading.leader_events import RollRequested
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.commands.table_commands import PrepareSegment
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import NextReplicas
from stratalog.model.storage_policy import StoragePolicy, next_policy
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.shards.copies.context import ShardContext

log = logger(__name__)

FRESH_MS = 100
"""For so long after it was heard the service counts as there: enough for a segment that fills faster than questions are
answered. The shorter, the fewer shards roll just after it went away."""


class ShardToRoll(Protocol):
    def handle(self, event: ChainEvent) -> None: ...


class Successors:
    """Memory: an entry per segment that is at least half full and not rolled yet."""

    def __init__(self, context: ShardContext, service_heard_ms: Callable[[], int]) -> None:
        """`service_heard_ms`: up to when the service is known to have heard this node, by the monotonic clock."""
        self._context = context
        self._service_heard_ms = service_heard_ms
        self._prepared: dict[SegmentKey, tuple[NextReplicas, int]] = {}
        """With when the service said so."""
        self._wanted: set[SegmentKey] = set()
        """Segments to be rolled as soon as a successor is known."""
        self._leaving: set[SegmentKey] = set()
        """To be rolled because a node of theirs leaves, or new ones came: when they are empty, too."""
        self._instead_of: dict[SegmentKey, NextReplicas] = {}
        """Successors that were prepared and are to be replaced, although they are alive."""
        self._asked: set[SegmentKey] = set()
        self._outdated: set[SegmentKey] = set()
        """Asked for before something came to be known that the answer may lack: they are asked for again."""
        self._answered: SegmentKey | None = None
        """The service has answered for it just now."""
        self._failing: dict[SegmentKey, Backoff] = {}
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.cancel()

    def name(self, leader: SegmentLeader) -> SuccessorNamed | SuccessorUnknown:
        """The successor of a segment that is to end now."""
        if self._continues_alone(leader.key):
            return SuccessorNamed(self._context.node_id, leader.replicas, leader.is_direct)
        prepared, told_ms = self._prepared.get(leader.key, (None, 0))
        heard_ms = max(told_ms, self._service_heard_ms())
        lease_ms = self._context.settings.node_lease_ms
        # A late answer was under way for an unknown time: it is valid for one lease.
        patience_ms = lease_ms if self._answered == leader.key else min(FRESH_MS, lease_ms)
        if prepared is None or self._context.turn.monotonic_ms() - heard_ms > patience_ms:
            self._wanted.add(leader.key)
            return SuccessorUnknown()
        return SuccessorNamed(prepared.leader, prepared.replicas, prepared.policy is StoragePolicy.DIRECT)

    def is_due(self, key: SegmentKey) -> bool:
        """Whether it rolls as soon as a successor is known."""
        return key in self._wanted

    def prepare(self, shard: ShardToRoll, key: SegmentKey) -> None:
        """See that it is known. Asked for once at a time."""
        if key not in self._asked and not self._continues_alone(key):
            self._asked.add(key)
            self._tasks.start(self._prepare(shard, key))

    def roll_to_new_successor(self, shard: ShardToRoll, key: SegmentKey) -> None:
        """Ask again for the successor of a segment, because the named one may leave, and end the segment once it is
        known, even an empty one. The only node of a cluster ends it at once."""
        if self._continues_alone(key):
            shard.handle(RollRequested(is_empty_too=True))
            return
        if key in self._asked and key not in self._leaving:
            self._outdated.add(key)
        self._prepared.pop(key, None)
        self._leaving.add(key)
        self._wanted.add(key)
        self.prepare(shard, key)

    def replace_successor(self, shard: ShardToRoll, key: SegmentKey, instead_of: NextReplicas | None) -> None:
        """As `roll_anew`, though all who were named stay: the nodes are others than when they were."""
        if instead_of is not None and not self._continues_alone(key) and self._instead_of.get(key) != instead_of:
            self._instead_of[key] = instead_of
            if key in self._asked:
                self._outdated.add(key)
        self.roll_to_new_successor(shard, key)

    def forget(self, key: SegmentKey) -> None:
        """It has ended here. What is asked for it says nothing of what follows."""
        self._instead_of.pop(key, None)
        self._asked.discard(key)
        self._outdated.discard(key)
        self._prepared.pop(key, None)
        self._failing.pop(key, None)
        self._wanted.discard(key)
        self._leaving.discard(key)

    def _continues_alone(self, key: SegmentKey) -> bool:
        """No other node could continue after it, and the next one opens by the same policy: there is nothing to ask."""
        catalog = self._context.catalog
        if any(node.node_id != self._context.node_id for node in catalog.nodes()):
            return False
        segment, topic = catalog.segment(key), catalog.topic_by_id(key.topic_id)
        return segment is None or topic is None or segment.policy is next_policy(topic.settings)

    async def _ask(self, key: SegmentKey) -> tuple[NextReplicas | None, int]:
        """The answer, and when it was asked for. One that was on its way when others were wished for is replaced."""
        instead_of = self._instead_of.get(key)
        while True:
            self._outdated.discard(key)
            asked_ms = self._context.turn.monotonic_ms()
            segment = await self._context.meta.perform(PrepareSegment(key, instead_of))
            if key not in self._outdated:
                return segment.handed.prepared, asked_ms
            instead_of = segment.handed.prepared

    async def _prepare(self, shard: ShardToRoll, key: SegmentKey) -> None:
        is_answered = False
        try:
            prepared, asked_ms = await self._ask(key)
            self._failing.pop(key, None)
            if prepared is not None and key in self._asked:
                self._prepared[key] = prepared, asked_ms
                is_answered = True
        except StratalogError as error:
            log.warning("no replica is ready to follow a segment yet", segment=str(key), error=str(error))
            # A shard without a successor asks again, perhaps at every turn.
            await self._failing.setdefault(key, Backoff()).pause()
        finally:
            self._asked.discard(key)
        if key in self._wanted and key in self._prepared:
            self._wanted.discard(key)
            self._answered = key if is_answered else None
            try:
                shard.handle(RollRequested(is_empty_too=key in self._leaving))
            finally:
                self._answered = None
