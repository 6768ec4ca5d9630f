"""Reports unsealed segments whose copy on this node is unreliable to the meta service: a flush failed, a fault stopped
the shard, the file cannot be read, or an ended segment cannot be sealed. The rest of the ISR then continues without
this copy, and the service moves segments that this node led to one of the others. The node's lease is still valid, so
no other node would notice.

Reports are repeated until they are in the service's record. A copy that is alone in the ISR stays, because it is the
only one. Lives on the event loop. Cost: a check of each shard every second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from stratalog.machines.following.copies_to_report import (
    ENDS_SERVICE,
    has_others,
    is_damage_untold,
    is_faulty_untold,
    led_to_the_end,
)
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import ReportFaultyCopies
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment
from stratalog.telemetry.logs import logger
from stratalog_node.replication.report_loop import report_repeatedly
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.directory import ShardDirectory

log = logger(__name__)

POLL_S = 1.0
_MOST_AT_ONCE = 1_000


class FaultyCopies:
    def __init__(
        self,
        node_id: int,
        catalog: Catalog,
        shards: ShardDirectory,
        meta: MetaClient,
        followed: Callable[[], Iterable[SegmentKey]],
        unsealable: Callable[[], Iterable[SegmentKey]],
        unwritable: Callable[[], Iterable[SegmentKey]] = lambda: (),
        damaged: Callable[[], Iterable[SegmentKey]] = lambda: (),
    ) -> None:
        """`followed`: segments that others lead and that this node cannot follow. `unsealable`: those that it led to
        their end and cannot seal. `unwritable`: those to whose files nothing could be appended for a while. `damaged`:
        those that it follows, with less than it held before."""
        self._node_id = node_id
        self._catalog = catalog
        self._shards = shards
        self._meta = meta
        self._followed = followed
        self._unsealable = unsealable
        self._unwritable = unwritable
        self._damaged = damaged

    async def run(self) -> None:
        """Without an end."""
        await report_repeatedly(self.check, lambda: POLL_S, "faulty copies")

    async def check(self) -> None:
        """Raises: Unavailable, Fenced."""
        untold = {one.key: None for one in self._faulty() if self._is_due(is_faulty_untold, one)}
        damaged = (self._catalog.segment(key) for key in self._damaged())
        untold |= {one.key: None for one in damaged if one is not None and self._is_due(is_damage_untold, one)}
        keys = tuple(untold)
        for start in range(0, len(keys), _MOST_AT_ONCE):
            some = keys[start : start + _MOST_AT_ONCE]
            log.error(
                "copies on this node are not reliable: other replicas continue without them",
                segments=len(some),
                one=str(some[0]),
            )
            await self._meta.perform(ReportFaultyCopies(some))

    def _is_due(self, is_untold: Callable[..., bool], segment: Segment) -> bool:
        if segment.is_direct and not self._has_another_writer():
            return False
        by_quorum = self._catalog.is_quorum(segment.key.topic_id)
        return is_untold(segment, self._node_id, by_quorum=by_quorum)

    def _has_another_writer(self) -> bool:
        """Whether another node could continue a Direct segment, of which it has nothing."""
        others = (node for node in self._catalog.nodes() if node.node_id != self._node_id)
        return any(node.is_alive and node.can_write and not node.is_leaving for node in others)

    def _faulty(self) -> Iterator[Segment]:
        found = (self._catalog.segment(key) for key in chain(self._followed(), self._led_in_vain()))
        return chain(self._stopped(), self._gone_bad(), (segment for segment in found if segment is not None))

    def _led_in_vain(self) -> Iterator[SegmentKey]:
        """What this node leads and cannot write to, while the rest of its disk may be well."""
        for key in self._unwritable():
            active = self._catalog.active_segment(key.shard_key)
            if active is not None and active.key == key and active.leader == self._node_id:
                yield key

    def _stopped(self) -> Iterator[Segment]:
        """What shards that stopped led, and has not been sealed."""
        for shard, stop in self._shards.stopped():
            if stop.cause in ENDS_SERVICE:
                yield from led_to_the_end(shard.segments, self._node_id)

    def _gone_bad(self) -> Iterator[Segment]:
        """A leader that gives up one segment of a shard no longer leads the shard: so other nodes must be able to
        continue with all its segments."""
        for key in {key.shard_key for key in self._unsealable()}:
            shard = self._shards.get(key)
            led = list(led_to_the_end(shard.segments, self._node_id)) if shard is not None else []
            if all(has_others(segment, self._node_id) for segment in led):
                yield from led
