"""Chooses which node is asked for which segment: one connection for each node that is asked for anything, the
object store beside them, and no requests while this disk has no room.

Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stratalog.kafka.replica_fetch import SegmentAnswer
from stratalog.machines.following.copy_sources import OBJECT_STORE
from stratalog.machines.following.fetch_rounds import SegmentName
from stratalog.machines.following.follower_events import Ask
from stratalog.machines.token_bucket import TokenBucket
from stratalog.model.segment import Segment
from stratalog_node.replication.peer import Asker, Peer
from stratalog_node.replication.stats import ReplicationStats
from stratalog_node.replication.store_source import StoreSource
from stratalog_node.shards.copies.cold_reads import ColdReads
from stratalog_node.shards.copies.context import ShardContext


class AskedPeers:
    """Invariant: of one segment one node is asked."""

    def __init__(
        self,
        context: ShardContext,
        asker: Asker,
        take: Callable[[int, SegmentAnswer[memoryview]], int],
        lost: Callable[[SegmentName, int], None],
        stats: ReplicationStats,
        steady_ms: Callable[[], int],
        cold: ColdReads | None = None,
        segment_of: Callable[[SegmentName], Segment | None] = lambda name: None,
    ) -> None:
        """`take`: see `Peer`. `lost` is called with each segment that was requested from an unreachable node. `cold`:
        None on a node without an object store; `segment_of`: see `StoreSource`."""
        self._context = context
        self._asker = asker
        self._take = take
        self._lost = lost
        self._stats = stats
        self._steady_ms = steady_ms
        rate = context.settings.replica_catchup_bytes_per_second
        self._catch_up = TokenBucket(rate, rate, steady_ms())
        self._peers: dict[int, Peer | StoreSource] = {}
        if cold is not None:
            source = StoreSource(cold, segment_of, take, lost, self._catch_up, stats, steady_ms)
            self._peers[OBJECT_STORE] = source
        self._asked: dict[SegmentName, int] = {}
        self._held: dict[SegmentName, Ask] | None = None
        """What would be asked for if this disk had room; None while it has."""

    @property
    def is_held(self) -> bool:
        """Nothing is asked for."""
        return self._held is not None

    def may_catch_up(self, now_ms: int) -> bool:
        """Whether more catch-up data, which no client waits for, may be requested."""
        return self._held is None and self._catch_up.level(now_ms) > 0

    async def close(self) -> None:
        for peer in self._peers.values():
            await peer.close()

    def ask(self, name: SegmentName, ask: Ask | None) -> None:
        """From now on so, of this segment; None: not at all."""
        if self._held is not None:
            self._held.pop(name, None)
            if ask is not None:
                self._held[name] = ask
                ask = None
        self._ask(name, ask)

    def hold(self, asks: Iterable[tuple[SegmentName, Ask | None]]) -> None:
        """Stop asking; `asks`: all present requests."""
        self._held = {}
        for name, ask in asks:
            self.ask(name, ask)

    def resume(self) -> int:
        """Ask for what was held. Returns: of how many segments."""
        held, self._held = self._held or {}, None
        for name, ask in held.items():
            self._ask(name, ask)
        return len(held)

    def _ask(self, name: SegmentName, ask: Ask | None) -> None:
        before = self._asked.get(name)
        if before is not None and (ask is None or ask.node_id != before):
            del self._asked[name]
            self._peers[before].unwant(name)
        if ask is not None:
            if ask.node_id != before:
                self._asked[name] = ask.node_id
            self._peer(ask.node_id).want(name, ask.offset, is_throttled=ask.is_throttled)

    def _peer(self, node_id: int) -> Peer | StoreSource:
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = Peer(
                node_id,
                self._asker,
                lambda: self._address_of(node_id),
                self._take,
                self._cannot_reach,
                self._catch_up,
                self._stats,
                self._steady_ms,
            )
        return peer

    def _address_of(self, node_id: int) -> tuple[str, int] | None:
        node = self._context.catalog.node(node_id)
        return (node.host, node.port) if node is not None else None

    def _cannot_reach(self, node_id: int) -> None:
        for name in [name for name, asked in self._asked.items() if asked == node_id]:
            self._lost(name, node_id)
