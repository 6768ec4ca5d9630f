"""The uploader of a node: follows the shards' committed data into the object store.

One task turns what happened (data committed, segments sealed or deleted, uploads ended) into events for the machine
`stratalog.machines.tiering.uploader`, and its effects into upload tasks; nothing is decided here. Producers never wait
for it: all it takes from the hot path is one dictionary entry per shard and tick.

Requires: `start` after the shards have recovered; the catalog is kept current by its watch.
Invariants: at most `limits.max_requests` uploads, at most `limits.in_flight_bytes` of data; a quiet node does nothing
but renew its lock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import Any, assert_never
from uuid import UUID, uuid4

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.restart.missing_copy import judge_missing
from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.claims import holder_name
from stratalog.machines.tiering.mounted_uploads import MountedCopy
from stratalog.machines.tiering.upload_state import uploads
from stratalog.machines.tiering.uploader import Uploader
from stratalog.meta_api.client import MetaClient
from stratalog.model.errors import Fenced
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    Change,
    Lock,
    MountChanged,
    MountEnded,
    NodeChanged,
    SegmentChanged,
    ShardChanged,
    TopicChanged,
    TopicDeleted,
)
from stratalog.model.mounts import MountMode
from stratalog.model.segment import RemotePart, RemoteState, Segment, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.direct_room import DirectRoom
from stratalog_node.shards.copies.events import ShardEvents
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.shards.copies.shard_view import Shards, ShardView
from stratalog_node.slices import Slices
from stratalog_node.tier.store.claim import ClaimOwner, EpochClaim, Forked
from stratalog_node.tier.store.lock import TierLock, tier_lock_name
from stratalog_node.tier.store.stats import TierStats, TierStatus
from stratalog_node.tier.uploads.attempts import Attempts
from stratalog_node.tier.uploads.committer import Committer, MetaAway
from stratalog_node.tier.uploads.encoder import Encoder
from stratalog_node.tier.uploads.flush_goal import FlushGoal
from stratalog_node.tier.uploads.key_indexer import KeyIndexer
from stratalog_node.tier.uploads.ledger import PartLedger
from stratalog_node.tier.uploads.mounted_copies import DirectoryAway, MountedCopies
from stratalog_node.tier.uploads.parts import PartBuilder
from stratalog_node.tier.uploads.publisher import Publisher
from stratalog_node.tier.uploads.puts import PutDoubtful, PutRefused
from stratalog_node.tier.uploads.segment_records import SegmentRecords
from stratalog_node.tier.uploads.sender import Sender, TaskOrder
from stratalog_node.tier.uploads.source import PieceReader
from stratalog_node.tier.uploads.unsent import UnsentCount
from stratalog_node.tier.uploads.upload_preflight import UploadPreflight

log = logger(__name__)

_FLUSH_POLL_S = 0.01
_SHARDS_PER_TURN = 1_000
"""Shards whose high watermark is looked at in one step of the loop (about 10 us each)."""


class DutyChanges:
    """Assigns uploads again when a node dies or returns, or when a mount changes its holder or becomes readable.

    The uploads of a dead node pass to other nodes, and return with it. Lives on the event loop, as one task.
    """

    def __init__(self, catalog: Catalog, reassign: Callable[[], Awaitable[None]]) -> None:
        self._reassign = reassign
        self._changed = asyncio.Event()
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        match change:
            case NodeChanged() | MountEnded():
                self._changed.set()
            case MountChanged(mount) if mount.mode is MountMode.VOLUME:
                self._changed.set()
            case _:
                pass

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._reassign()


class NodeUploader:
    def __init__(
        self,
        *,
        node_id: int,
        cluster_id: str,
        meta: MetaClient,
        shards: Shards,
        events: ShardEvents,
        catalog: Catalog,
        store: ObjectStore,
        limits: upload_events.UploadLimits,
        clock_ms: Callable[[], int],
        rng: random.Random,
        holder: str,
        names: ObjectNames | None = None,
        stats: TierStats | None = None,
        lock_ttl_ms: int = 5_000,
        doubt_ms: int = 3_600_000,
        gather_ms: int = 20,
        storage_id: str = "",
        nonce: UUID | None = None,
        table_of: Callable[[Segment], Awaitable[bytes]],
        peers: PeerReads | None = None,
        direct_room: DirectRoom | None = None,
    ) -> None:
        """`table_of`: see `Publisher`. `holder` (node id, epoch), `nonce`: of this life and no other's copy. `peers`:
        readers of mounted directories. Moved high watermarks are gathered for `gather_ms`; doubtful attempts kept from
        the sweep for `doubt_ms`."""
        self.stats = stats or TierStats()
        self.names = names or ObjectNames("", cluster_id)
        self._node_id = node_id
        self._meta = meta
        self._shards = shards
        self._events = events
        self._catalog = catalog
        self._limits = limits
        self._clock_ms = clock_ms
        self._rng = rng
        self._gather_s = gather_ms / 1_000
        self._wake_ms: int | None = None
        self._direct_room = direct_room
        self._encoder = Encoder()
        self._ledger = PartLedger()
        self.attempts = Attempts(self.names, node_id, rng, clock_ms, doubt_ms)
        self._known = SegmentRecords(cluster_id, catalog, self.names)
        self._mounted = MountedCopies(node_id, catalog, peers, self._encoder, self.stats)
        self._unsent = UnsentCount(shards, self._known, self._mounted)
        self._machine = Uploader(limits, self._known.is_bundle_key)
        self.unsent = self._machine.unsent
        self._committer = Committer(meta, limits, rng, self.stats)
        self.preflight = UploadPreflight(store, limits, clock_ms, rng)
        self._reader = PieceReader(shards, store, self._ledger, self._encoder, limits, self._mounted, cluster_id)
        self._sender = Sender(
            cluster_id=cluster_id,
            node_id=node_id,
            store=store,
            reader=self._reader,
            builder=PartBuilder(self._encoder),
            committer=self._committer,
            attempts=self.attempts,
            known=self._known,
            ledger=self._ledger,
            limits=limits,
            stats=self.stats,
        )
        self._publisher = Publisher(
            store=store,
            meta=meta,
            reader=self._reader,
            committer=self._committer,
            attempts=self.attempts,
            known=self._known,
            limits=limits,
            stats=self.stats,
            table_of=table_of,
            keys=KeyIndexer(catalog, store, self._reader, self.attempts, self._encoder, limits, self.stats),
        )
        owner = ClaimOwner(node_id, storage_id, nonce := nonce or uuid4())
        self.claim = EpochClaim(owner, self.names, store, limits, self.stats, catalog.has_remote_data, clock_ms)
        self.lock = TierLock(
            meta=meta,
            name=tier_lock_name(node_id),
            holder=holder_name(holder, nonce),
            ttl_ms=lock_ttl_ms,
            call_timeout_ms=limits.call_timeout_ms,
            rng=rng,
            before_asking=self.claim.listed,
            on_gained=self._lock_gained,
            on_lost=self._lock_lost,
        )
        self._told: dict[SegmentKey, tuple[SegmentState, bool, MountedCopy | None, int, int]] = {}
        self._changed: set[SegmentKey] | None = None
        """Segments that changed since the metadata were asked for that are being read; None while none are."""
        self._dirty: dict[ShardKey, ShardView] = {}
        self._inbox: list[upload_events.UploaderEvent] = []
        self._wake = asyncio.Event()
        self._uploads: dict[int, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    # Life -----------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Begin. Returns soon: lock, store and meta service may all be away (F51)."""
        self._events.on_committed(self._on_committed)
        self._events.on_segment_changed(lambda view, segment: self._report_segment(segment, view))
        self._catalog.on_change(self._on_change)
        await self._report_all()
        self._tasks = [
            asyncio.create_task(DutyChanges(self._catalog, self._report_all).follow(), name="tier-duties"),
            asyncio.create_task(self._run(), name="tier-uploader"),
            asyncio.create_task(self._open(), name="tier-lock"),
        ]

    async def close(self) -> None:
        """Stop uploading; what is in flight is given up and swept later. Gives the lock back."""
        running = [*self._tasks, *self._uploads.values()]
        self._tasks = []
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.lock.release()
        self._encoder.close()
        self._sender.close()

    def poke(self) -> None:
        """Check the clock now (tests advance it themselves)."""
        self._wake.set()

    async def flush_now(self, timeout_ms: int = 60_000) -> None:
        """Upload everything that is committed now, and complete what is sealed now.

        Raises: Unavailable, saying what is left, when that takes longer than `timeout_ms`.
        """
        goal = FlushGoal(
            self._shards,
            is_ours=self._is_ours,
            latest=lambda key: self._known.get(key) or self._catalog.segment(key),
            commit_offset=self._machine.commit_offset,
        )
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                while goal.is_waited_for(has_lock=self.lock.current is not None):
                    self._enqueue(upload_events.FlushRequested())
                    await asyncio.sleep(_FLUSH_POLL_S)
        except TimeoutError as error:
            raise goal.missed(self._machine.describe(self._clock_ms()), timeout_ms) from error

    def status(self) -> TierStatus:
        """Also brings the gauges of `stats` up to date. Cost: a check of each unfinished segment."""
        described = self._machine.describe(self._clock_ms())
        if (since := self.preflight.waiting_since_ms) is not None:
            described = replace(described, store_away_ms=self._clock_ms() - since)
        self.stats.show(described)
        return TierStatus(described, self.attempts.expire(), self.lock.current.epoch if self.lock.current else None)

    def commit_offset(self, key: SegmentKey) -> int | None:
        """The segment's commit offset as the uploader knows it; None when it is finished or not this node's."""
        return self._machine.commit_offset(key)

    def is_in_flight(self, key: SegmentKey) -> bool:
        return self._machine.is_in_flight(key)

    def rewrite(self, key: SegmentKey, parts: tuple[RemotePart, ...]) -> None:
        """Move committed parts out of the object they lie in."""
        self._enqueue(upload_events.RewriteRequested(key, parts))

    # What happens -----------------------------------------------------------------------------------------------------
    def _enqueue(self, event: upload_events.UploaderEvent) -> None:
        self._inbox.append(event)
        self._wake.set()

    def _on_committed(self, view: ShardView) -> None:
        self._dirty[view.key] = view
        self._wake.set()

    def _on_change(self, change: Change) -> None:
        match change:
            case SegmentChanged(segment):
                self._note_changed(segment)
                self._report_segment(segment, self._shards.get(segment.key.shard_key))
            case ShardChanged(shard):
                # A new shard brings its first segment along.
                for segment in shard.segments:
                    self._note_changed(segment)
                    self._report_segment(segment, self._shards.get(shard.key))
            case TopicDeleted(topic):
                for key in [key for key in self._known if key.topic_id == topic.topic_id]:
                    self._drop(key)
            case TopicChanged(topic):
                for view in [view for view in self._shards.all() if view.key.topic_id == topic.topic_id]:
                    for segment in view.segments:
                        self._report_segment(segment, view)
            case _:
                pass

    def _note_changed(self, segment: Segment) -> None:
        if self._changed is not None:
            self._changed.add(segment.key)

    async def _report_all(self) -> None:
        work = Slices()
        for view in list(self._shards.all()):
            for segment in (segments := view.segments):
                self._report_segment(segment, view)
            await work.did(len(segments))

    def _report_segment(self, segment: Segment, view: ShardView | None, *, is_news: bool = False) -> None:
        """Tell the machine of a segment whose state changed, or that is new to it."""
        known = self._known.get(segment.key)
        if not self._is_ours(segment):
            if known is not None:
                self._drop(segment.key)
            return
        latest = self._known.put(segment)
        has_local = view is not None and view.has_local(segment.key)
        mounted = None if has_local else self._mounted.of(latest)
        settings = self._catalog.topic_settings(latest.key.topic_id)
        chunk_bytes, interval_ms = settings.remote_upload_chunk_bytes, settings.remote_upload_interval_ms
        told = (latest.state, has_local, mounted, chunk_bytes, interval_ms)
        before, self._told[latest.key] = self._told.get(latest.key), told
        if before == told and not is_news:
            return
        if before is not None and before[2] not in (None, mounted):
            self._enqueue(
                upload_events.SegmentGone(latest.key)
            )  # what the one could not give the next may, so nothing is held for it
        offset = max(latest.remote.commit_offset, latest.base_offset)
        is_missing = view is not None and segment.key in view.missing
        self._enqueue(
            upload_events.SegmentSeen(
                latest.key,
                is_sealed=latest.seal is not None,
                end_offset=latest.end_offset,
                commit_offset=offset,
                parts=latest.remote.parts,
                has_local=has_local or mounted is not None,
                unsent_bytes=self._unsent.unsent_bytes(latest.key, offset),
                missing=judge_missing(latest, self._node_id, has_store=True).words if is_missing else None,
                directories=mounted.nodes if mounted is not None else None,
                away=mounted.away if mounted is not None else None,
                is_direct=latest.is_direct,
                chunk_bytes=chunk_bytes,
                interval_ms=interval_ms,
            )
        )

    def _is_ours(self, segment: Segment) -> bool:
        is_duty = uploads(segment, self._node_id, self._catalog.is_alive, self._catalog.mount_of)
        if not is_duty or self._catalog.topic_by_id(segment.key.topic_id) is None:
            return False
        return segment.is_direct or self._catalog.topic_settings(segment.key.topic_id).remote_storage_enable

    def _drop(self, key: SegmentKey) -> None:
        self._known.drop(key)
        if not self._known.of_shard(key.shard_key):
            self._unsent.forget(key.shard_key)
        self._told.pop(key, None)
        self._ledger.forget(key)
        self._enqueue(upload_events.SegmentGone(key))

    async def _lock_gained(self, lock: Lock) -> None:
        """The epoch must be ours in the bucket, too. Then metadata is the truth: read all of it before anything is sent
        under a new lock (F5, F31)."""
        await self.claim.hold(lock)
        changed = self._changed = set()
        try:
            await self._read_metadata(changed)
        finally:
            self._changed = None
        self._enqueue(upload_events.LockGained(lock.epoch))

    async def _read_metadata(self, changed: Set[SegmentKey]) -> None:
        """`changed` grows meanwhile: what was read of these segments may be older than the change."""
        async with asyncio.timeout(self._limits.call_timeout_ms / 1_000):
            snapshot = await self._meta.snapshot()
        self._ledger.clear()
        present = {segment.key: segment for shard in snapshot.shards for segment in shard.segments}
        for key in [key for key in self._known if key not in present and key not in changed]:
            self._drop(key)
        work = Slices()
        for listed in present.values():
            await work.did()
            segment = self._catalog.segment(listed.key) if listed.key in changed else listed
            if segment is None:
                continue  # deleted meanwhile
            if segment.state is not SegmentState.DELETED and segment.remote.state is not RemoteState.COMPLETE:
                self._report_segment(segment, self._shards.get(segment.key.shard_key), is_news=True)
            elif self._known.get(segment.key) is not None:
                self._drop(segment.key)

    async def hold_claim(self) -> Lock | None:
        """The write lock, with its claim just seen to be ours: what deletes from the store asks for it each time.

        Returns: None without the lock, or when a copy of this node took an epoch: uploads stop then. Raises: what the
        store raises while it is away."""
        lock = self.lock.current
        if lock is None:
            return None
        try:
            await self.claim.hold(lock)
        except Forked:
            self.lock.lost(lock.epoch)
            return None
        return lock if self.lock.current is not None and self.lock.current.epoch == lock.epoch else None

    async def _open(self) -> None:
        await self.preflight.passed()
        await self.lock.run()

    def _lock_lost(self) -> None:
        self.stats.locks_lost += 1
        self._enqueue(upload_events.LockLost())

    # The turn ------------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                self._run_step()
            except Exception:  # F79: an uploader that died silently would fill the disk
                self.stats.tasks_crashed += 1
                log.exception("a step of the uploader failed, the next one is tried")
            if self._gather_s:
                await asyncio.sleep(self._gather_s)
            await self._wait()

    def _run_step(self) -> None:
        events, self._inbox = self._inbox, []
        now_ms = self._clock_ms()
        # News of segments first: a shard may have grown into a segment that the machine learns of in this very turn.
        self._machine.take_in(map(self._recounted, events), now_ms)
        grown: list[upload_events.UploaderEvent] = []
        for key in list(islice(self._dirty, _SHARDS_PER_TURN)):
            for segment_key in self._unsent.grown(self._dirty.pop(key)):
                offset = self._machine.commit_offset(segment_key)
                if offset is not None:
                    grown.append(
                        upload_events.CommittedGrew(segment_key, self._unsent.unsent_bytes(segment_key, offset))
                    )
        for effect in self._machine.step_all(grown, now_ms):
            self._perform(effect)
        if self._direct_room is not None:
            self._direct_room.counted(self._machine.unstored_bytes, self._is_counted_or_gone)
            self.stats.direct_unstored_bytes = self._direct_room.unstored_bytes
        # By the time of this turn: a pause that ends before the alarm is set would otherwise be slept through (F45).
        self._wake_ms = self._machine.next_wake_ms(now_ms)

    def _is_counted_or_gone(self, key: SegmentKey) -> bool:
        view = self._shards.get(key.shard_key)
        return self._machine.knows(key) or view is None or not view.has_local(key)

    def _recounted(self, event: upload_events.UploaderEvent) -> upload_events.UploaderEvent:
        """The event with the present unsent bytes: its own count may be older than what was reported since."""
        if not isinstance(event, upload_events.TaskEnded):
            return event
        outcomes: list[upload_events.PieceOutcome] = []
        for outcome in event.outcomes:
            match outcome:
                case upload_events.Moved(key, offset, parts, _, is_ours):
                    outcome = upload_events.Moved(key, offset, parts, self._unsent.unsent_bytes(key, offset), is_ours)
                case upload_events.NothingThere(key):
                    offset = self._machine.commit_offset(key) or key.base_offset
                    outcome = upload_events.NothingThere(key, self._unsent.unsent_bytes(key, offset))
                case _:
                    pass
            outcomes.append(outcome)
        return upload_events.TaskEnded(event.task, tuple(outcomes))

    async def _wait(self) -> None:
        """Until something happened, or the machine wants to know the time."""
        if not self._inbox and not self._dirty:
            timer = None
            if self._wake_ms is not None:
                delay_s = max(0, self._wake_ms - self._clock_ms()) / 1_000
                timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        self._wake.clear()

    def _perform(self, effect: upload_events.UploaderEffect) -> None:
        lock = self.lock.current
        match effect:
            case upload_events.SendChunk(task, piece, after):
                order = self._order(task, after)
                self._begin(task, lock, lambda held: self._sender.send_chunk(held, piece, order))
            case upload_events.SendBundle(task, pieces, after):
                order = self._order(task, after)
                self._begin(task, lock, lambda held: self._sender.send_bundle(held, pieces, order))
            case upload_events.Publish(task):
                publication = effect
                self._begin(task, lock, lambda held: self._publisher.publish(held, publication))
            case upload_events.CancelTask(task):
                if running := self._uploads.get(task):
                    running.cancel()
            case upload_events.ReportStore(service, is_away, reason, away_ms):
                if is_away:
                    log.warning(f"{service} does not answer, uploads wait", reason=reason)
                else:
                    log.info(f"{service} answers again, uploads continue", away_ms=away_ms)
            case upload_events.ReportHeld(key, reason, is_final):
                self.stats.segments_held += 1
                log.error("segment is not uploaded any further", segment=str(key), reason=reason, is_final=is_final)
            case _:
                assert_never(effect)

    def _order(self, task: int, after: Sequence[int]) -> TaskOrder:
        before = [self._uploads[one] for one in after if one in self._uploads]
        return TaskOrder(lambda ends: self._enqueue(upload_events.RangesCut(task, ends)), before)

    def _begin(
        self,
        task: int,
        lock: Lock | None,
        work: Callable[[Lock], Coroutine[Any, Any, tuple[upload_events.PieceOutcome, ...]]],
    ) -> None:
        if lock is None:
            self._enqueue(self._failed(task, upload_events.TaskFailure.LOCK_LOST, "the write lock was lost"))
            return
        self._uploads[task] = asyncio.create_task(self._upload(task, lock, work), name=f"tier-upload-{task}")

    async def _upload(
        self,
        task: int,
        lock: Lock,
        work: Callable[[Lock], Coroutine[Any, Any, tuple[upload_events.PieceOutcome, ...]]],
    ) -> None:
        """Run one upload to its end and tell the machine, whatever happens (F48)."""
        event: upload_events.UploaderEvent = self._failed(task, upload_events.TaskFailure.CANCELLED, "cancelled")
        try:
            event = upload_events.TaskEnded(task, await work(lock))
        except PutDoubtful as error:
            self.stats.attempts_doubtful += 1
            event = self._failed(task, upload_events.TaskFailure.DOUBTFUL, str(error))
        except PutRefused as error:
            self.stats.attempts_refused += 1
            event = self._failed(task, upload_events.TaskFailure.REFUSED, str(error))
        except MetaAway as error:
            event = self._failed(task, upload_events.TaskFailure.META_AWAY, str(error))
        except DirectoryAway as error:
            event = self._failed(task, upload_events.TaskFailure.DIRECTORY_AWAY, str(error))
        except Fenced as error:
            self.lock.lost(lock.epoch)
            event = self._failed(task, upload_events.TaskFailure.LOCK_LOST, str(error))
        except Exception as error:
            self.stats.tasks_crashed += 1
            log.exception("upload ended by a fault of this program; its segments are tried again later")
            event = self._failed(task, upload_events.TaskFailure.FAULT, f"a fault in the node, see its log: {error!r}")
        finally:
            del self._uploads[task]
            self._enqueue(event)

    def _failed(self, task: int, failure: upload_events.TaskFailure, reason: str) -> upload_events.TaskFailed:
        return upload_events.TaskFailed(task, failure, reason, self._rng.random())
