"""All that this node follows: a replica for each segment that lists this node and that another node leads. Follows the
catalog; `asked_peers.py` chooses the nodes to ask. Lives on the event loop.

Requires: the catalog is loaded, and no part of the node uses the files of these segments.
Cost: an idle segment takes memory for its objects, and nothing per round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from stratalog.event_loop.task_set import TaskSet
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.segments.index_points import IndexPoints
from stratalog.kafka.replica_fetch import SegmentAnswer
from stratalog.machines.following.copies_to_report import is_counted_on
from stratalog.machines.following.copy_sources import OBJECT_STORE
from stratalog.machines.following.fetch_rounds import SegmentName, segment_name
from stratalog.machines.following.followed_segments import must_copy_again, news_of, should_follow
from stratalog.machines.following.follower_events import Ask, FollowerLife, RangeRefusal, RangeRefused, SegmentGone
from stratalog.machines.following.segment_follower import SegmentFollower
from stratalog.machines.leading.sealed_producers import Producers
from stratalog.machines.reading.bucket_reads import is_copied_from_bucket
from stratalog.model.commands.table_commands import NodeCommand, ReportReplica
from stratalog.model.errors import Corrupt, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Change, SegmentChanged, ShardChanged, TopicChanged, TopicDeleted
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import Segment
from stratalog.model.topic import Topic
from stratalog.settings.choices import FlushPolicy
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.fences import FenceBook
from stratalog_node.disk.files import FlushLost
from stratalog_node.replication.asked_peers import AskedPeers
from stratalog_node.replication.background_flushes import BackgroundFlushes, flush_at_stop
from stratalog_node.replication.copy_queue import CopyQueue
from stratalog_node.replication.copy_scheduler import CopyScheduler
from stratalog_node.replication.filling import CopyFilling
from stratalog_node.replication.first_files import FirstFiles
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.promises import Promises
from stratalog_node.replication.replica import Replica
from stratalog_node.replication.replica_copy import ReplicaCopy
from stratalog_node.replication.report_gate import ReportGate
from stratalog_node.replication.stats import ReplicationStats
from stratalog_node.replication.unfollowed_copies import UnfollowedCopies
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.copies.cold_reads import ColdReads, RemoteBatches
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.restart.opening import set_aside
from stratalog_node.shards.seal.producers_before import tally_at_end

log = logger(__name__)

_ANEW_S, _LONGEST_ANEW_S = 10.0, 300.0
"""Between a copy of a sealed segment that cannot be used and the next one; it doubles, for each costs a transfer."""
_ROOM_POLL_S = 0.5
_INDEX_PATIENCE_S = 30.0
"""How long the index block of a sealed copy waits while shards roll. Until then it costs the memory of its points."""
_OPEN_AGAIN_S = 5.0


class Following:
    def __init__(
        self,
        context: ShardContext,
        asker: Asker,
        checkpoints: Checkpoints,
        *,
        is_tail_whole: bool = True,
        is_continued: bool = True,
        steady_ms: Callable[[], int],
        is_led: Callable[[SegmentKey], bool] = lambda key: False,
        ended: Callable[[ShardKey], Sequence[ActiveSegment]] = lambda key: (),
        remote: RemoteBatches | None = None,
        cold: ColdReads | None = None,
        sealed: Callable[[Segment, IndexPoints | None], None] = lambda segment, points: None,
        let_go_of: Callable[[Segment], None] = lambda segment: None,
        clear: Callable[[SegmentKey], Coroutine[None, None, None]] | None = None,
        doubt_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Blocking. `is_tail_whole`: as far as this node can tell, the last process lost nothing that it confirmed; the
        meta service knows more. `is_continued`: this is the directory in which that process ran. `is_led`: this process
        writes the segment, or has written it; `ended`: the segments of a shard that it wrote to the end and that are
        not sealed. `remote` and `cold`: None on a node without an object store. `sealed` is called with a copy that is
        sealed and no longer followed, and with its points if no index block has them yet, `let_go_of` with a sealed
        segment that this node need not hold, `doubt_stop` at a stop that leaves something unflushed; `clear` removes
        what this node had of a segment that it will not continue to follow. Raises: Corrupt, Unavailable."""
        self._context = context
        self._asker = asker
        self._is_tail_whole = is_tail_whole
        self._is_continued = is_continued
        self._fences = FenceBook(context.layout.fences)
        self.steady_ms = steady_ms
        self._is_led = is_led
        self._ended = ended
        self._remote = remote
        self._sealed = sealed
        self._let_go_of = let_go_of
        self._clear = clear
        self._doubt_stop = doubt_stop
        self._checkpoints = checkpoints
        self._gate = ReportGate()
        self._line = CopyQueue()
        self._behind = BackgroundFlushes(context.settings.flush_interval_ms)
        self._faulty: dict[SegmentName, Replica] = {}
        self._useless: dict[SegmentKey, Backoff] = {}
        """Sealed segments of which no copy could be used yet."""
        self._damaged: dict[SegmentName, Replica] = {}
        """Whose files held more than what can be read of them, unless it was made good since."""
        self.stats = ReplicationStats()
        self.replicas: dict[SegmentName, Replica] = {}
        self._opening: set[SegmentName] = set()
        self._unopened: dict[SegmentKey, StratalogError] = {}
        """Copies that cannot be followed on, and why; nothing was fetched for them in this life."""
        self._has_store = cold is not None
        self._peers = AskedPeers(
            context, asker, self._receive_range, self._lost, self.stats, steady_ms, cold, self._segment_of
        )
        self._tasks = TaskSet()
        self._is_closing = False
        self.turns = CopyScheduler(context.threads)
        self.first_files = FirstFiles(self.turns.at_once, self.start)
        self._promises = Promises(context.threads.promise, self._fences)
        self._left = UnfollowedCopies(self.turns.in_turn, self.turns.at_once, self.start, self._fences, checkpoints)

    def begin(self) -> None:
        """Follow what the catalog lists, and what it will list."""
        catalog = self._context.catalog
        catalog.on_change(self._on_change)
        for key in list(catalog.shard_keys()):
            for segment in catalog.segments(key):
                if self._is_wanted(segment):
                    self._update(segment)
        self._forget_settled()
        self._tasks.start(self._behind.run())
        self._tasks.start(self._watch_room())

    def _forget_settled(self) -> None:
        """Lines about segments that the last process followed to their seal, and had no time to remove."""
        for key in self._fences.keys:
            segment = self._context.catalog.segment(key)
            if segment is not None and segment.seal is not None and self._asker.node_id in segment.local_nodes:
                self._left.forget(key)

    async def close(self) -> None:
        """A stop in order leaves all of it on the disk, with checkpoints, so that the next start reads little."""
        await self._peers.close()
        self._is_closing = True
        await self._tasks.cancel()
        await self._left.close()
        replicas = list(self.replicas.values())
        if not await flush_at_stop(replicas):
            self._doubt_stop()
        for replica in replicas:
            replica.close()
            replica.copy.file.close_when_unused()

    # The catalog ----------------------------------------------------------------------------------------------------
    def _on_change(self, change: Change) -> None:
        match change:
            case SegmentChanged(segment):
                self._update(segment)
                self._update_earlier(segment)
            case ShardChanged(shard):
                for segment in shard.segments:
                    self._update(segment)
            case TopicDeleted(topic):
                for replica in self._of_topic(topic.topic_id):
                    replica.handle(SegmentGone())
            case TopicChanged(topic):
                for replica in self._of_topic(topic.topic_id):
                    replica.change_settings(self._context.catalog.topic_settings(topic.topic_id))
                if not self._context.catalog.reads_bucket(topic.topic_id):
                    self._update_all(topic)  # what the object store was enough for needs copies now
            case _:
                pass

    def _update_all(self, topic: Topic) -> None:
        for number in range(topic.shard_count):
            for segment in self._context.catalog.segments(ShardKey(topic.topic_id, number)):
                self._update(segment)

    def _is_wanted(self, segment: Segment) -> bool:
        may_read = self._context.catalog.reads_bucket(segment.key.topic_id)
        return should_follow(segment, self._asker.node_id, may_read_bucket=may_read)

    def _is_counted_on(self, segment: Segment) -> bool:
        by_quorum = self._context.catalog.is_quorum(segment.key.topic_id)
        return is_counted_on(segment, self._asker.node_id, by_quorum=by_quorum)

    def _of_topic(self, topic_id: UUID) -> list[Replica]:
        return [replica for name, replica in self.replicas.items() if name.topic_id == topic_id]

    def _update_earlier(self, changed: Segment) -> None:
        """A node that no longer leads a shard does not seal its segments: it follows those that it led before this
        one."""
        for segment in reversed(self._context.catalog.segments(changed.key.shard_key)):
            if segment.seal is not None:
                break
            if segment.key != changed.key and self._context.followed.get(segment.key) is None:
                self._update(segment)

    def _update(self, segment: Segment) -> None:
        key = segment.key
        name = SegmentName(key.topic_id, key.shard, key.epoch)
        replica = self.replicas.get(name)
        if replica is not None:
            catalog, life = self._context.catalog, replica.follower.life
            may_read, has_store = catalog.reads_bucket(key.topic_id), self._has_store
            node_id = self._asker.node_id
            replica.handle(
                news_of(segment, node_id, life, catalog.is_alive, has_store=has_store, may_read_bucket=may_read)
            )
            if replica.follower.life is FollowerLife.SEALED:
                self._let_go(replica)
                self._useless.pop(key, None)
                self._sealed(segment, replica.copy.unwritten_points)
                self.start(self._write_seal(replica.copy, segment))
            self.repair_if_faulty(replica)
            return
        is_due = self._is_wanted(segment) and not self._is_led(key)
        if segment.seal is not None:
            self._update_sealed(segment, is_due=is_due)
        elif is_due and name not in self._opening:
            trouble = self._unopened.get(key)
            may_open = not isinstance(trouble, Corrupt) or not self._is_counted_on(segment)
            if may_open and not isinstance(trouble, FlushLost):
                self._begin_opening(name, key)
        elif not is_due:
            self._unopened.pop(key, None)

    def _update_sealed(self, segment: Segment, *, is_due: bool) -> None:
        node_id = self._asker.node_id
        if is_due:
            self._line.add(segment.key)
        else:
            self._line.drop(segment.key)
            self._useless.pop(segment.key, None)
            if node_id not in segment.replicas and node_id not in segment.local_nodes:
                self._let_go_of(segment)
        self._copy_next()

    def _copy_next(self) -> None:
        for key in self._line.begin_next(self._is_there, self._fitting()):
            self._begin_opening(SegmentName(key.topic_id, key.shard, key.epoch), key)
        self.stats.copies_due = len(self._line)

    def _fitting(self) -> Callable[[SegmentKey], bool]:
        """Whether a copy may begin: what a larger disk had, and lost, must not fill this one until new data is refused.
        What is in a file here already needs no room."""
        room_bytes = self._context.gate.copies_room_bytes
        if room_bytes is None:
            return lambda key: True
        left_bytes = room_bytes - sum(map(self._bytes_to_come, self._line.under_way))

        def fits(key: SegmentKey) -> bool:
            nonlocal left_bytes
            size_bytes = self._bytes_to_come(key)
            if size_bytes > max(left_bytes, 0):
                return self._context.layout.segment(key).exists()
            left_bytes -= size_bytes
            return True

        return fits

    def _bytes_to_come(self, key: SegmentKey) -> int:
        segment = self._context.catalog.segment(key)
        replica = self.replicas.get(SegmentName(key.topic_id, key.shard, key.epoch))
        size_bytes = 0 if segment is None or segment.seal is None else segment.seal.size_bytes
        return max(0, size_bytes - (0 if replica is None else replica.copy.scan.position))

    def _is_there(self, key: SegmentKey) -> bool:
        segment, is_alive = self._context.catalog.segment(key), self._context.catalog.is_alive
        if segment is None:
            return False
        is_stored = self._has_store and is_copied_from_bucket(segment)
        return is_stored or any(is_alive(node) for node in segment.local_nodes)

    def _segment_of(self, name: SegmentName) -> Segment | None:
        replica = self.replicas.get(name)
        return None if replica is None else self._context.catalog.segment(replica.copy.key)

    def release_stuck_copies(self) -> None:
        """Copies that come no further make way for those that wait."""
        now_ms = self.steady_ms()
        if not self._peers.may_catch_up(now_ms):
            self._line.excuse()
        else:
            for key in self._line.stuck(self._fetched_end, now_ms):
                self._let_go(self.replicas[SegmentName(key.topic_id, key.shard, key.epoch)])
                self._line.add(key)
        self._copy_next()

    def _fetched_end(self, key: SegmentKey) -> int | None:
        replica = self.replicas.get(SegmentName(key.topic_id, key.shard, key.epoch))
        return replica.end_offset if replica is not None and replica.follower.lacks_data else None

    async def _write_seal(self, copy: ReplicaCopy, segment: Segment) -> None:
        """Writes the seal and the producer table into the index block, which also holds what this copy alone knew. Not
        while shards roll or find new leaders: no client waits for the block."""
        assert segment.seal is not None
        seal = segment.seal
        try:
            await self._context.rolls_in_progress.wait_until_none(_INDEX_PATIENCE_S)
            table = await self._context.tables.for_block(segment, copy.found_producers)
            await self.settle_behind(copy, lambda: copy.write_index(seal, table))
            if not table and (fetched := await self._context.tables.wait_for_table(segment)):
                await self.settle_behind(copy, lambda: copy.write_index(seal, fetched))
        except StratalogError as error:
            log.warning("an index block lacks the seal record", segment=str(segment.key), error=str(error))

    def repair_if_faulty(self, replica: Replica) -> None:
        """A sealed segment has intact copies on other nodes, and the metadata do not list this one: copy it again."""
        if replica.follower.life is not FollowerLife.FAULTY or replica.name not in self.replicas:
            return
        self._faulty[replica.name] = replica
        self.stats.faulty_copies = len(self._faulty)
        segment = self._context.catalog.segment(replica.copy.key)
        if segment is not None and must_copy_again(segment, self._asker.node_id):
            self._let_go(replica)
            self.start(self._copy_again(replica.copy))

    async def _copy_again(self, copy: ReplicaCopy) -> None:
        segment = self._context.catalog.segment(copy.key)
        is_given_up = segment is not None and bool(segment.handed.given_up)
        await self.change(copy, copy.set_aside if is_given_up else copy.remove)
        await self._useless.setdefault(copy.key, Backoff(_ANEW_S, _LONGEST_ANEW_S)).pause()
        await self._retry(copy.key, 0)

    def _begin_opening(self, name: SegmentName, key: SegmentKey) -> None:
        self._context.rolls_in_progress.note_roll()
        if name not in self._opening:  # it may have been sealed meanwhile, and come through the line
            self._opening.add(name)
            begin = self._restart_copy if isinstance(self._unopened.get(key), Corrupt) else self._open
            self.start(begin(name, key))

    async def _open(self, name: SegmentName, key: SegmentKey) -> None:
        context = self._context
        try:
            topic = context.catalog.topic_by_id(key.topic_id)
            if topic is None:
                self._line.drop(key)
                self._copy_next()
                return
            settings = context.catalog.topic_settings(key.topic_id)  # the topic may be deleted while the file is read
            await self._left.settle(key)
            if self._clear is not None:
                await self._clear(key)
            copy = ReplicaCopy(context, key, topic.name)
            is_kept = True
            if self._checkpoints.had(key) or copy.is_known or self._fences.seen_offset(key) >= 0:
                is_kept = await self.change(copy, lambda: self._open_found(copy), is_urgent=True)
                self.stats.damaged_copies += copy.is_damaged
                if not is_kept:
                    log.error("a copy has less than was written to it", segment=str(name), end_offset=copy.end_offset)
            is_fsync = settings.flush_policy is FlushPolicy.FSYNC
            follower = SegmentFollower(
                key,
                self._asker.node_id,
                is_fsync=is_fsync,
                end_offset=copy.end_offset,
                is_tail_whole=is_kept and self._is_continued and (self._is_tail_whole or is_fsync),
                promised_fence=self._fences.promised(key),
            )
        except Exception as error:  # of whatever kind: it is not opened, and must be tried again (F48)
            is_foreseen = isinstance(error, StratalogError | OSError)
            log.error("a replica cannot be opened", segment=str(name), error=str(error), exc_info=not is_foreseen)
            self._line.drop(key)
            self._copy_next()
            self._cannot_open(key, error if isinstance(error, StratalogError) else Unavailable(repr(error)))
            return
        finally:
            self._opening.discard(name)
        self._unopened.pop(key, None)
        segment = context.catalog.segment(key)
        if segment is None:
            self._line.drop(key)
            self._copy_next()
            copy.file.close_when_unused()
            self._left.remove(copy)
        else:
            self.replicas[name] = replica = Replica(self, follower, copy)
            context.followed.put(key, replica)
            self.stats.followed_segments = len(self.replicas)
            replica.change_settings(context.catalog.topic_settings(key.topic_id))
            self._update(segment)  # it may be sealed meanwhile, by what a former life told

    def _open_found(self, copy: ReplicaCopy) -> bool:
        """Blocking. Returns: whether all data is there that the directory says was written. Damage is recorded before
        the copy is used, and so before it is overwritten. Raises: Corrupt, Unavailable, DiskFull."""
        is_kept = copy.open_found(self._checkpoints.load(copy.key))
        if copy.is_damaged:
            self._fences.note_damage(copy.key, copy.seen_offset)
        copy.seen_offset = max(copy.seen_offset, self._fences.seen_offset(copy.key))
        return is_kept and not copy.is_damaged

    def _cannot_open(self, key: SegmentKey, error: StratalogError) -> None:
        """What a flush lost is lost as long as this process lives; other trouble may pass, and damage is set aside."""
        self._unopened[key] = error
        if not isinstance(error, FlushLost):
            self.start(self._retry(key, _OPEN_AGAIN_S))

    async def _retry(self, key: SegmentKey, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if (segment := self._context.catalog.segment(key)) is not None:
            self._update(segment)
        else:
            self._useless.pop(key, None)

    async def _restart_copy(self, name: SegmentName, key: SegmentKey) -> None:
        """The service counts on this copy no more: what cannot be read is set aside, and all is fetched again."""
        path = self._context.layout.segment(key)
        try:
            await self.turns.in_turn(lambda: set_aside(path) if path.exists() else None)
        except (StratalogError, OSError) as error:
            log.error("a copy that cannot be read stays in the way", segment=str(name), error=str(error))
            self._opening.discard(name)
            self._line.drop(key)
            self.start(self._retry(key, _OPEN_AGAIN_S))
            return
        log.warning("a copy that cannot be read was set aside and is made again", segment=str(name))
        await self._open(name, key)

    def faulty(self) -> list[SegmentKey]:
        """Segments whose content on this disk is unknown."""
        faulty = (one.copy.key for one in self._faulty.values() if one.follower.life is FollowerLife.FAULTY)
        return [*faulty, *self._unopened]

    def damaged(self) -> list[SegmentKey]:
        """Copies that held more than what can be read of them, and do not have it again yet."""
        for name in [name for name, one in self._damaged.items() if not one.copy.is_damaged]:
            del self._damaged[name]
        return [one.copy.key for one in self._damaged.values() if one.lacks_what_it_held]

    async def producers_at_end(self, key: SegmentKey, found: Producers) -> ProducerTally | None:
        return await tally_at_end(self._context, key, found, self._ended(key.shard_key))

    def _let_go(self, replica: Replica) -> None:
        """It is sealed: no longer followed. Its file stays."""
        if self.replicas.pop(replica.name, None) is not None:
            self._context.followed.drop(replica.copy.key)
            self.ask(replica.name, None)
            replica.close()
            replica.copy.let_go()
            self.stats.followed_segments = len(self.replicas)
            self._faulty.pop(replica.name, None)
            self._damaged.pop(replica.name, None)
            self._behind.forget(replica)
            self.stats.faulty_copies = len(self._faulty)
            self._line.drop(replica.copy.key)
            self._copy_next()
            self._left.forget(replica.copy.key)

    def dropped(self, replica: Replica) -> None:
        self._let_go(replica)
        self._useless.pop(replica.copy.key, None)
        self._left.remove(replica.copy)

    async def keep_checkpoint(self, checkpoint: Checkpoint, is_true: Callable[[], bool]) -> None:
        await self.turns.in_turn(lambda: self._checkpoints.put([checkpoint] if is_true() else []))
        self.stats.checkpoints += 1

    async def revoke_checkpoint(self, key: SegmentKey) -> None:
        def revoke() -> None:
            self._checkpoints.revoke([key])
            self._fences.forget_damage(key)

        await self.turns.at_once(revoke)

    # What replicas need ---------------------------------------------------------------------------------------------
    def ask(self, name: SegmentName, ask: Ask | None) -> None:
        self._peers.ask(name, ask)

    def _receive_range(self, node_id: int, answer: SegmentAnswer[memoryview]) -> int:
        replica = self.replicas.get(segment_name(answer[:3]))
        if replica is None or self._peers.is_held:
            return 0
        before = replica.copy.scan.position
        replica.receive(node_id, answer)
        taken_bytes = max(0, replica.copy.scan.position - before)
        self.stats.fetched_bytes += taken_bytes
        if answer.error_code or taken_bytes < answer.records_bytes:
            self.stats.refused_ranges += 1
        return taken_bytes

    def _lost(self, name: SegmentName, node_id: int) -> None:
        """The replica turns to another node if it has one to ask. Else it asks this one still: the connection is made
        again after pauses, and its first round names all that is asked for. While thousands wait for a dead leader's
        fence, each would otherwise pause and ask at its own times."""
        replica = self.replicas[name]
        if node_id == OBJECT_STORE or replica.follower.has_other_sources:
            replica.handle(RangeRefused(node_id, RangeRefusal.UNREACHABLE))

    def version_of(self, key: SegmentKey) -> int:
        return -1 if (segment := self._context.catalog.segment(key)) is None else segment.isr_version

    def start(self, work: Coroutine[object, object, None]) -> None:
        if self._is_closing:
            work.close()
        else:
            self._tasks.start(work)

    async def change(self, copy: ReplicaCopy, work: Callable[[], Any], *, is_urgent: bool = False) -> Any:
        return await self.turns.change(copy, work, is_urgent=is_urgent)

    async def settle(self, copy: ReplicaCopy, work: Callable[[], Any], *, reads_all: bool = False) -> Any:
        return await self.turns.settle(copy, work, reads_all=reads_all)

    async def settle_behind(self, copy: ReplicaCopy, work: Callable[[], Any]) -> Any:
        return await self.turns.settle_behind(copy, work)

    async def write_promise(self, key: SegmentKey, fence: int) -> None:
        await self._promises.write(key, fence)
        self.stats.promised_fences += 1

    async def fill(self, copy: ReplicaCopy, end_offset: int, is_due: Callable[[], bool]) -> None:
        if (topic := self._context.catalog.topic_by_id(copy.key.topic_id)) is not None:
            filling = CopyFilling(self._context, self._remote, copy.key, topic.name)
            await filling.fill(copy.end_offset, end_offset, is_due)
            self.stats.filled_copies += 1

    def report_slot(self) -> AbstractAsyncContextManager[None]:
        return self._gate.slot()

    async def submit(self, command: NodeCommand[Segment]) -> Segment:
        segment = await self._context.meta.perform(command)
        if isinstance(command, ReportReplica):
            self.stats.proven_copies += 1
        return segment

    def happened(self, replica: Replica) -> None:
        if replica.name in self.replicas:
            self._behind.note(replica)
            if replica.copy.is_damaged:
                self._damaged[replica.name] = replica

    def append_failed(self, replica: Replica, error: StratalogError) -> None:
        """Told as any write that fails: once in a while, for the whole node."""
        self.stats.refused_appends += 1
        topic = self._context.catalog.topic_by_id(replica.copy.key.topic_id)
        name = topic.name if topic is not None else "a deleted topic"
        self._context.gate.write_failed(name, replica.copy.key.shard, error)

    async def _watch_room(self) -> None:
        """A node without room requests nothing, since it could not write the answers. Its leaders continue without
        it."""
        while True:
            await asyncio.sleep(_ROOM_POLL_S)
            try:
                self.check_room()
                self.release_stuck_copies()
            except Exception:  # copies would wait forever (F48)
                log.error("room and copies in line cannot be looked at", exc_info=True)

    def check_room(self) -> None:
        is_full = self._context.gate.no_room is not None
        if is_full and not self._peers.is_held:
            self._peers.hold([(replica.name, replica.follower.asks) for replica in self.replicas.values()])
            log.error("nothing is taken from other nodes: no room", reason=self._context.gate.no_room)
        elif not is_full and self._peers.is_held:
            log.info("there is room again: copying continues", segments=self._peers.resume())
        self.stats.is_without_room = int(is_full)
