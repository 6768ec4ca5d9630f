"""The seals of a shard's segments that were led here, one after another: the stand-in for
`storage_node/stratalog_node/shards/seal/sealing.py`.

The line waits for its first: for other replicas to report, and for the watch to tell of a deletion.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from stratalog.machines.leading.chain_events import ChainEvent, SegmentFlushFailed, SegmentLeft
from stratalog.machines.leading.sealed_producers import without
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.restart.restart_events import Producers
from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import Conflict, NotFound, Rejected, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import SealRecord, SegmentState
from stratalog_sim.environment.disk import Disk, digest_of
from stratalog_sim.environment.process import Sleep, Task
from stratalog_sim.node.proofs import table_of, tally_at_end
from stratalog_sim.node.shell import NodeShell

_RETRY_MS = 150
_FLUSH_MS = 8


class SealingShard(Protocol):
    """What the line uses of its shard."""

    key: ShardKey
    chain: ShardChain
    damaged: dict[SegmentKey, None]

    @property
    def node(self) -> NodeShell: ...

    @property
    def disk(self) -> Disk: ...

    def step(self, event: ChainEvent) -> None: ...


class SealLine:
    def __init__(self, shard: SealingShard) -> None:
        self._shard = shard
        self._node = shard.node
        self._line: deque[SegmentKey] = deque()
        self._is_sealing = False
        self._sealed_last: dict[SegmentKey, Producers] = {}
        """The table at the end of the segment that was sealed last."""

    def later(self, key: SegmentKey) -> None:
        """Behind those asked for before."""
        self._line.append(key)
        if not self._is_sealing:
            self._is_sealing = True
            self._node.spawn(self._seal_in_order())

    def _seal_in_order(self) -> Task:
        while self._line:
            yield from self._seal(self._line[0])
            self._line.popleft()
        self._is_sealing = False

    def _seal(self, key: SegmentKey) -> Task:
        node, shard = self._node, self._shard
        yield node.disk_work(_FLUSH_MS)
        while (known := node.view.segments(shard.key)) and known[-1].epoch < key.epoch:
            yield Sleep(_RETRY_MS)  # its table follows from when it was opened
        leader = next((one for one in shard.chain.ended if one.key == key), None)
        if leader is None or key not in shard.disk.files:
            return
        if not shard.disk.flush(key):
            shard.step(SegmentFlushFailed(key.epoch, "the disk lost a page"))
            return
        record = self.make(key, leader.end_offset, self._tally(leader))
        if record is None:
            node.tell(f"cannot seal epoch {key.epoch}: its file is damaged")
            shard.damaged[key] = None
            return
        shard.disk.touch()
        shard.disk.sealed[key] = None
        yield from self._ask(key, record)

    def _ask(self, key: SegmentKey, record: SealRecord) -> Task:
        """Until it is sealed or gone: a report on what is DELETED is answered without a seal."""
        node = self._node
        is_shared = node.is_shared(key)
        while True:
            try:
                if not is_shared:
                    yield node.ask_meta(commands.SealSegment(key, record))
                    break
                # Until all that have to have reported.
                listed = node.view.segment(key)
                version = listed.isr_version if listed is not None else -1
                told = yield node.ask_meta(commands.ReportReplica(key, record, version))
                if told.seal is not None:
                    break
                if told.state is SegmentState.DELETED and node.view.segment(key) is None:
                    self._left(key)
                    return
                yield Sleep(_RETRY_MS)
            except Rejected as refusal:
                if node.view.segment(key) is None:
                    self._left(key)
                    return
                if isinstance(refusal, NotFound):
                    yield Sleep(_RETRY_MS)  # the watch has still to tell that it is gone
                elif isinstance(refusal, Conflict) and not is_shared:
                    is_shared = True  # another replica was named at the last moment, or it was deleted
                else:
                    node.tell(f"seal of epoch {key.epoch} refused: {refusal}")
                    return
            except StratalogError:
                yield Sleep(_RETRY_MS)
        self._sealed_last = {key: self._shard.disk.tables.get(key, ())}
        self._left(key)

    def _left(self, key: SegmentKey) -> None:
        if any(one.key == key for one in self._shard.chain.ended):
            self._shard.step(SegmentLeft(key.epoch))

    def _tally(self, leader: SegmentLeader) -> ProducerTally:
        node, disk = self._node, self._shard.disk
        listed = node.view.segments(leader.key.shard_key)
        ended = next((one for one in listed if one.epoch == leader.key.epoch - 1), None)
        before = table_of(node, ended) if ended is not None and ended.seal is not None else None
        if ended is not None and ended.seal is None:
            before = self._sealed_last.get(ended.key)  # the view may not have heard of that yet
        if before is None:
            before = without(leader.producers_at_end or (), leader.key.base_offset)
        disk.led_to_the_end.discard(leader.key)
        tally = tally_at_end(node, leader.key, before, leader.end_offset)
        disk.led_to_the_end.add(leader.key)
        return tally

    def make(self, key: SegmentKey, end_offset: int, producers: ProducerTally) -> SealRecord | None:
        """From what the disk has, read once more. None: that is not the segment."""
        batches = self._shard.disk.files[key].whole(key)
        if (batches[-1].end_offset if batches else key.base_offset) != end_offset:
            return None
        now_ms = self._node.now_ms
        time_ms = now_ms if batches else -1
        size_bytes = sum(batch.size_bytes for batch in batches)
        digest, node_id = digest_of(batches), self._node.node_id
        return SealRecord(
            key.epoch,
            key.base_offset,
            end_offset,
            time_ms,
            time_ms,
            size_bytes,
            digest,
            producers,
            (node_id,),
            now_ms,
        )
