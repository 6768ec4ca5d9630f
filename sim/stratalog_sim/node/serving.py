"""What clients ask a node for: batches to append, and batches to read, from the leader's log, from a copy, or from the
object store."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from stratalog.machines.leading.leader_events import OfferedBatch
from stratalog.machines.reading.read_sources import provers
from stratalog.model.append import AppendFailure
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment, SegmentState
from stratalog_sim.environment.disk import Batch
from stratalog_sim.environment.process import Ask, Request, Task
from stratalog_sim.environment.store import Get
from stratalog_sim.node.shard import LeadingNode, Offer, ShardShell

_PEER_MS = 200


@dataclass(frozen=True, slots=True)
class Produce:
    shard: ShardKey
    batches: tuple[tuple[str, int, int, int, int, int, int], ...]
    """Value, records, bytes, producer, its epoch, sequence, acks."""

    def __str__(self) -> str:
        return f"produce {' '.join(batch[0] for batch in self.batches)} to shard {self.shard.shard}"


@dataclass(frozen=True, slots=True)
class Fetch:
    """A fetch request of a consumer."""

    shard: ShardKey
    offset: int
    epoch: int = -1
    """Epoch of the newest batch that the consumer knows: a node that knows of none this new is not the leader."""

    def __str__(self) -> str:
        return f"fetch shard {self.shard.shard} from {self.offset}"


@dataclass(frozen=True, slots=True)
class PeerRead:
    """Of a node that has no copy of a sealed segment."""

    key: SegmentKey
    offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    batches: tuple[Batch, ...]
    high_watermark: int
    log_start_offset: int
    error: str = ""
    """`not leader`, `out of range`, `again`."""

    def __str__(self) -> str:
        return f"{self.error or ' '.join(map(str, self.batches)) or 'nothing'} hw {self.high_watermark}"


class Serving:
    def __init__(self, node: LeadingNode) -> None:
        self._node = node

    def take_batches(self, sender: str, request: Request, produce: Produce) -> None:
        shard = self._node.shards.get(produce.shard)
        if shard is None:
            self._node.reply(sender, request, tuple(AppendFailure.NOT_LEADER for _ in produce.batches))
            return
        offer = Offer([None] * len(produce.batches), lambda answers: self._node.reply(sender, request, answers))
        shard.offer(
            [
                OfferedBatch(value, size, count, self._node.now_ms, producer, epoch, sequence, acks, offer, slot)
                for slot, (value, count, size, producer, epoch, sequence, acks) in enumerate(produce.batches)
            ]
        )

    def read(self, sender: str, request: Request, fetch: Fetch) -> None:
        shard = self._node.shards.get(fetch.shard)
        if shard is None:
            self._node.reply(sender, request, Fetched((), -1, 0, "not leader"))
            return
        start, active = self._node.view.log_start(fetch.shard), self._node.view.active(fetch.shard)
        is_leader = active is not None and active.leader == self._node.node_id
        if not is_leader:
            self._read_copy(sender, request, fetch, start)
            return
        high = shard.chain.high_watermark
        if active is not None and is_leader:
            # What a recovery found counts once it is sealed.
            open_ends = [
                one.base_offset for one in self._node.view.segments(fetch.shard) if one.fence and one.seal is None
            ]
            high = max(high, min([active.base_offset, *open_ends]))
        listed = active.epoch if active is not None else -1
        is_stale = shard.chain.compare_epoch(fetch.epoch, listed) > 0 or shard.chain.active is None
        if fetch.offset > high and is_stale:
            self._node.reply(sender, request, Fetched((), high, start, "again"))
            return
        if fetch.offset < start or (fetch.offset > high and shard.chain.is_end_known):
            self._node.reply(sender, request, Fetched((), high, start, "out of range"))
            return
        if fetch.offset >= high:
            self._node.reply(sender, request, Fetched((), high, start, "" if shard.chain.is_end_known else "again"))
            return
        key = self._holds(shard, fetch.offset)
        if key is not None:
            batches = shard.committed_batches(key, fetch.offset)
            if batches and batches[0].base_offset <= fetch.offset:
                self._node.reply(sender, request, Fetched(tuple(batches[:4]), high, start))
                return
        self._node.spawn(self._read_cold(sender, request, fetch, high, start))

    def _read_copy(self, sender: str, request: Request, fetch: Fetch, start: int) -> None:
        """What this node holds of what others lead."""
        for segment in self._node.view.segments(fetch.shard):
            if segment.base_offset <= fetch.offset and (
                segment.end_offset is None or fetch.offset < segment.end_offset
            ):
                batches = self._node.shards[fetch.shard].committed_batches(segment.key, fetch.offset - 2)
                found = [one for one in batches if one.end_offset > fetch.offset]
                if found and found[0].base_offset <= fetch.offset:
                    self._node.reply(sender, request, Fetched(tuple(found[:4]), -1, start))
                    return
        self._node.reply(sender, request, Fetched((), -1, start, "not leader"))

    def _holds(self, shard: ShardShell, offset: int) -> SegmentKey | None:
        """The local segment with that offset."""
        for leader in shard.leaders():
            if leader.key.base_offset <= offset < leader.end_offset:
                return leader.key
        for segment in self._node.view.segments(shard.key):
            is_here = segment.state is SegmentState.SEALED and segment.key in self._node.disk.files
            if is_here and segment.base_offset <= offset < (segment.end_offset or 0):
                return segment.key
        return None

    def _read_cold(self, sender: str, request: Request, fetch: Fetch, high: int, start: int) -> Task:
        """From the object store, else from a node that holds a sealed copy."""
        again = Fetched((), high, start, "again")
        for segment in self._node.view.segments(fetch.shard):
            begin = max(segment.base_offset, segment.remote.commit_offset)
            if segment.seal is not None and begin <= fetch.offset < segment.seal.end_offset:
                batches = yield from self._read_peers(segment, fetch)
                if batches:
                    self._node.reply(sender, request, Fetched(batches, high, start))
                    return
            if not segment.base_offset <= fetch.offset < segment.remote.commit_offset:
                continue
            keys = [part.object_key for part in segment.remote.parts]
            try:
                if segment.remote.manifest_key is not None:
                    manifest = yield Ask("store", Get(segment.remote.manifest_key))
                    keys = list(manifest.parts)
                for key in keys:
                    body = yield Ask("store", Get(key))
                    for part in body:
                        if part.key == segment.key and part.batches[0].base_offset <= fetch.offset:
                            found = [b for b in part.batches if b.end_offset > fetch.offset]
                            if found:
                                self._node.reply(sender, request, Fetched(tuple(found[:4]), high, start))
                                return
            except StratalogError:
                break
        self._node.reply(sender, request, again)

    def _read_peers(self, segment: Segment, fetch: Fetch):  # type: ignore[no-untyped-def]  # a task with a result
        view = self._node.view
        near, far = provers(segment, self._node.node_id, None, lambda _: None)
        for whom in map(view.reads_at, (*near, *far)):
            if whom is None:
                continue
            with suppress(StratalogError):
                fetched = yield Ask(whom, PeerRead(segment.key, fetch.offset), _PEER_MS)
                if fetched:
                    return fetched
        return ()

    def read_for_peer(self, sender: str, request: Request, asked: PeerRead) -> None:
        """Of a sealed segment whose copy was proved here, and of nothing else."""
        node, segment = self._node, self._node.view.segment(asked.key)
        file = node.disk.files.get(asked.key)
        found: tuple[Batch, ...] = ()
        if segment is not None and file is not None and node.node_id in segment.local_nodes:
            found = tuple(one for one in file.whole(asked.key) if one.end_offset > asked.offset)[:4]
        node.reply(sender, request, found)
