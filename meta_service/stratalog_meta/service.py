"""The meta service in this process: the shard table behind the interface `MetaClient`.

The caller starts it once on its event loop and closes it before the loop ends. Commands and reads may come from any
task of that loop, in any number; they are answered when durable (see `writer`).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast
from uuid import UUID

from stratalog.machines.plans.cluster_lists import kept_troubles, segment_page, shard_page, topic_page, trouble_page
from stratalog.machines.plans.cluster_outline import health, sums
from stratalog.machines.plans.cluster_overview import Known, overview
from stratalog.machines.plans.heartbeat_history import Course, HeartbeatHistory
from stratalog.machines.plans.shard_troubles import Trouble
from stratalog.machines.rebuild.meta_backups import Witness
from stratalog.machines.table.records import PutHeader, TableHeader
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import CreateMount, MountCut
from stratalog.model.commands.table_commands import Command, CompleteRemote, ForgetLocal, RegisterNode
from stratalog.model.counting import did_you_mean
from stratalog.model.errors import InvalidRequest, NotFound, Rejected, Unavailable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import (
    ChangeSet,
    CredentialChanged,
    CredentialDeleted,
    Heard,
    Heartbeat,
    QuotasChanged,
    QuotasDeleted,
    RuleCreated,
    RuleDeleted,
    Snapshot,
)
from stratalog.model.segment import Segment, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.cluster_lists import ListAsk, SegmentPage, ShardPage, TopicPage, TroublePage
from stratalog.model.views.outline import Outline, Sums
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.model.views.rights_view import RightsView, view_of
from stratalog.model.views.status_page import Overview
from stratalog.telemetry.logs import logger
from stratalog_meta.bucket.backups import BackupPlace, BucketBackups
from stratalog_meta.clocks import monotonic_ms
from stratalog_meta.costly_answer import CostlyAnswer, in_turns
from stratalog_meta.lives import LifeKeeper
from stratalog_meta.mount_expiry import MountExpiry
from stratalog_meta.recovery_news import RecoveryNews
from stratalog_meta.recovery_waits import RecoveryWaits
from stratalog_meta.repairs import CopyRepairs
from stratalog_meta.retirements import VERIFY_INTERVAL_MS, Retirements
from stratalog_meta.stats import BackupStats, LifeStats, MetaStats, RepairStats, RetirementStats
from stratalog_meta.stores.meta_store import MetaStore
from stratalog_meta.stores.spare_room import SpareRoom
from stratalog_meta.watch import MAX_CHANGES, ChangeHistory
from stratalog_meta.writer import TableWriter

R = TypeVar("R")
_log = logger(__name__)
FIRST_PRODUCER_ID = 1
_OF_RIGHTS = frozenset({RuleCreated, RuleDeleted, CredentialChanged, CredentialDeleted, QuotasChanged, QuotasDeleted})


class MetaService:
    """Implements `MetaClient`."""

    def __init__(
        self,
        store: MetaStore,
        clock_ms: Callable[[], int],
        *,
        new_id: Callable[[], UUID] = uuid.uuid4,
        stats: MetaStats | None = None,
        life_stats: LifeStats | None = None,
        repair_stats: RepairStats | None = None,
        max_history_changes: int = MAX_CHANGES,
        lease_ms: int | None = None,
        replace_after_ms: int = 10 * 60_000,
        patience_ms: int = 5_000,
        monotonic_ms: Callable[[], int] = monotonic_ms,
        backups: BackupPlace | None = None,
        backup_stats: BackupStats | None = None,
        retirement_stats: RetirementStats | None = None,
        verify_interval_ms: int = VERIFY_INTERVAL_MS,
        min_in_sync: int = 1,
    ) -> None:
        """Without `lease_ms` it keeps no leases: its nodes live in its process, and die with it. `replace_after_ms`:
        how long a node is gone before others copy what it had. `patience_ms`: how long a recovery waits for a replica
        that is alive and does not promise. `backups`: where snapshots of the metadata go. `min_in_sync`: the processes'
        `min.insync.replicas`, for topics that do not say otherwise."""
        self._store = store
        self._clock_ms = clock_ms
        self._new_id = new_id
        self._max_history_changes = max_history_changes
        self._lease_ms = lease_ms
        self._monotonic_ms = monotonic_ms
        self._replace_after_ms = replace_after_ms
        self._patience_ms = patience_ms
        self._lives: LifeKeeper | None = None
        self._waits: RecoveryWaits | None = None
        self._repairs: CopyRepairs | None = None
        self._expiry: MountExpiry | None = None
        self._retirements: Retirements | None = None
        self._verify_interval_ms = verify_interval_ms
        self.min_in_sync = min_in_sync
        self._running: tuple[TableWriter, ChangeHistory, str] | None = None
        self._is_closed = False
        self.stats = stats or MetaStats()
        self.life_stats = life_stats or LifeStats()
        self.repair_stats = repair_stats or RepairStats()
        self.backup_stats = backup_stats or BackupStats()
        self._backups = None if backups is None else BucketBackups(backups, clock_ms, self.backup_stats)
        self.retirement_stats = retirement_stats or RetirementStats()
        self._news = RecoveryNews(self.stats)
        self._courses = HeartbeatHistory()
        self._overview = CostlyAnswer(self._overview_steps, monotonic_ms, "meta-overview")
        self._sums = CostlyAnswer(self._sums_steps, monotonic_ms, "meta-sums")
        self._troubles = CostlyAnswer(self._trouble_steps, monotonic_ms, "meta-troubles")
        self._rights_version = 0
        """No rule and no credential has changed since this version of the table."""

    async def start(self, is_asked: Callable[[], bool] = lambda: True) -> None:
        """Load the store (a new one gets its cluster id) and begin to serve. `is_asked`: whether requests reach it now;
        while they do not, no node counts as dead for lack of heartbeats.

        Raises: Unavailable while another process has the store open, Corrupt for damaged metadata, Fenced when the
        bucket knows of newer ones.
        """
        if self._running is not None:
            raise Unavailable("this meta service has been started before: make another one")
        try:
            table = ShardTable.load(await self._store.load(), self._store.source)
            if table is None:
                header = TableHeader(str(self._new_id()), 0, FIRST_PRODUCER_ID)
                await self._store.write([[PutHeader(header)]])
                table = ShardTable.empty(header)
                _log.warning(
                    "a new cluster: the store was empty", cluster_id=header.cluster_id, store=self._store.source
                )
            table.min_in_sync = self.min_in_sync
            if self._backups is not None:
                await self._backups.check(table)
        except BaseException:
            await self._store.close()
            raise
        history = ChangeHistory(table.version, self._max_history_changes, self.stats, table.take_change_sets())
        writer = TableWriter(
            table,
            self._store,
            self._clock_ms,
            self._new_id,
            self._publish,
            self.stats,
            restart_history=self._restart_history,
        )
        writer.start()
        self._running = (writer, history, table.cluster_id)
        self._rights_version = table.version
        self._expiry = MountExpiry(self._clock_ms, writer)
        self._expiry.start()
        if self._lease_ms is not None:
            nodes = table.snapshot().nodes
            self._lives = LifeKeeper(self._lease_ms, nodes, self._monotonic_ms, writer, self.life_stats, is_asked)
            self._lives.start()
            self._waits = RecoveryWaits(self._patience_ms, table, self._monotonic_ms, writer, self.life_stats, is_asked)
            self._waits.start()
            vitals = self._lives.vitals
            self._retirements = Retirements(
                writer,
                self._clock_ms,
                self._monotonic_ms,
                lambda: vitals,
                self.retirement_stats,
                verify_interval_ms=self._verify_interval_ms,
            )
            self._repairs = CopyRepairs(
                self._replace_after_ms,
                nodes,
                self._monotonic_ms,
                writer,
                self.repair_stats,
                self._retirements.is_tiered,
                self._lives.started,
            )
            self._repairs.start()
            self._retirements.start()
        if self._backups is not None:
            self._backups.start(writer, table.cluster_id, table.version)

    async def close(self) -> None:
        """Answer what was asked before, then let go of the store. Commands that come later are `Unavailable`."""
        if self._running is None or self._is_closed:
            return
        self._is_closed = True
        await self._overview.close()
        await self._sums.close()
        await self._troubles.close()
        if self._lives is not None:
            await self._lives.close()
        if self._waits is not None:
            await self._waits.close()
        if self._repairs is not None:
            await self._repairs.close()
        if self._backups is not None:
            await self._backups.close()
        if self._retirements is not None:
            await self._retirements.close()
        writer, history, _ = self._running
        await writer.close()
        if self._expiry is not None:
            await self._expiry.close()
        history.close()
        await self._store.close()

    def end_watches(self) -> None:
        """Before `close`, when another instance leads by now: watchers go there, while what was asked is answered."""
        if self._running is not None:
            self._running[1].close()

    @property
    def is_broken(self) -> bool:
        """Changes are refused, and will be until another service is started over the store."""
        return self._running is not None and self._running[0].is_broken

    def leading(self) -> MetaService:
        """Itself: the server asks the candidate for the leader (see `leader`)."""
        return self

    @property
    def cluster_id(self) -> str:
        """Raises Unavailable before `start`."""
        return self._parts()[2]

    @property
    def why_no_changes(self) -> str | None:
        """Why commands are refused now; None while they are performed."""
        if self._running is None:
            return "the meta service has not been started yet: wait, then ask again"
        return self._running[0].why_no_changes

    def _parts(self) -> tuple[TableWriter, ChangeHistory, str]:
        if self._running is None:
            raise Unavailable("the meta service has not been started yet: wait, then ask again")
        return self._running

    def _publish(self, change_sets: Sequence[ChangeSet]) -> None:
        """What became durable together: to those who watch, to the leases, and to the log."""
        parts = (self._lives, self._waits, self._repairs, self._retirements, self._news)
        followers = [part.follow for part in parts if part is not None]
        for change_set in change_sets:
            for follow in followers:
                follow(change_set)
            if not _OF_RIGHTS.isdisjoint(map(type, change_set.changes)):
                self._rights_version = change_set.version
        if change_sets:
            self._parts()[1].publish(change_sets)

    def _restart_history(self, table: ShardTable) -> None:
        self._rights_version = table.version
        if self._lives is not None:
            self._lives.reread()
        if self._waits is not None:
            self._waits.reread()
        if self._repairs is not None:
            self._repairs.reread()
        if self._retirements is not None:
            self._retirements.reread()
        self._parts()[1].restart(table.version, table.take_change_sets())

    async def perform(self, command: Command[R], *, validate_only: bool = False) -> R:
        writer = self._parts()[0]
        registers = command if isinstance(command, RegisterNode) else None
        if registers is not None and self._lives is not None:
            async with self._lives.registering(registers):
                return await writer.submit(command, validate_only=validate_only)
        if isinstance(command, CreateMount) and command.snapshot:
            return await writer.submit(cast("Command[R]", await self._of_cut(command)), validate_only=validate_only)
        if self._backups is not None and not validate_only:
            if isinstance(command, ForgetLocal):
                self._backups.require_snapshot(await writer.read(lambda table: _living(table, command.segments)))
            elif isinstance(command, CompleteRemote):
                with self._noted(command.segment, self._backups.witness):
                    return await writer.submit(cast("Command[R]", command))  # what was narrowed is still answered so
        return await writer.submit(command, validate_only=validate_only)

    async def _of_cut(self, command: CreateMount) -> MountCut:
        """Raises: InvalidRequest, NotFound, Corrupt, Unavailable."""
        name = command.snapshot
        if self._backups is None:
            raise InvalidRequest(
                f"snapshot {name!r:.80} cannot be mounted: this meta service has no --bucket to read it in"
            )
        cut = await self._backups.read_cut(self.cluster_id, name)
        topics = {topic.name: topic.topic_id for topic in cut.topics if not topic.is_internal}
        if absent := [topic for topic in command.topics if topic not in topics]:
            raise NotFound(
                f"snapshot {name!r} has no topic {absent[0]!r:.80}: `stratalog snapshot show {name}` shows all"
            )
        wanted = {topics[topic] for topic in command.topics or topics}
        shards = tuple(shard for shard in cut.shards if shard.key.topic_id in wanted)
        return MountCut(command.name, shards, command.lasts_ms)

    @contextlib.contextmanager
    def _noted(self, key: SegmentKey, witness: Witness) -> Iterator[None]:
        """Until a snapshot covers it, no node frees the copies of a segment that became complete inside."""
        witness.completing(key)
        history = self._parts()[1]
        try:
            yield
        except Rejected:
            witness.completed(key, history.version)
            raise
        except BaseException:
            witness.outcome_unknown(key, history.version)
            raise
        witness.completed(key, history.version)

    async def heartbeat(self, heartbeat: Heartbeat, is_connected: Callable[[], bool] | None = None) -> Heard:
        """A node lives. `is_connected`: whether what it came over is still open, where there is such a thing. Raises
        Fenced for a life that is not the present one."""
        history = self._parts()[1]
        if self._lives is None:
            return Heard(0, history.version)
        self._lives.heartbeat_received(heartbeat, is_connected)
        if heartbeat.vitals is not None:
            self._courses.note(heartbeat.life.node_id, self._clock_ms(), heartbeat.vitals)
        return Heard(self._lives.lease_ms, history.version)

    # Reading ----------------------------------------------------------------------------------------------------
    async def read_cluster_id(self) -> str:
        return self.cluster_id

    async def snapshot(self) -> Snapshot:
        return await self._parts()[0].read(ShardTable.snapshot)

    def now_ms(self) -> int:
        """By the clock of its records."""
        return self._clock_ms()

    async def read_version(self) -> int:
        return await self._parts()[0].read(lambda table: table.version)

    def watch(self, after_version: int) -> AsyncIterator[ChangeSet]:
        return self._parts()[1].watch(after_version)

    async def topic(self, topic_id: UUID) -> Topic:
        """One topic. Raises NotFound."""
        return await self._parts()[0].read(lambda table: table.topic(topic_id))

    async def segment(self, key: SegmentKey) -> Segment:
        """One segment, living or DELETED. Raises NotFound."""
        return await self._parts()[0].read(lambda table: table.segment(key))

    async def shard(self, key: ShardKey) -> Shard:
        """One shard. Raises NotFound."""
        return await self._parts()[0].read(lambda table: table.shard(key))

    async def retirements(self) -> list[RetirementStatus]:
        """Nodes that leave, or have left; of a service that keeps no leases none."""
        retirements = self._retirements
        if retirements is None:
            return []
        snapshot = await self.snapshot()
        await retirements.survey_new(snapshot)
        return [retirements.status(node) for node in snapshot.nodes if node.retirement is not None]

    async def overview(self) -> Overview:
        """What the cluster UI shows."""
        return await self._overview.get()

    async def outline(self) -> Outline:
        """All but the shards: what of them is unwell is as it is now, and their sums are a while old."""
        summed = await self._sums.get()
        snapshot = await self.snapshot()
        healthy, _ = await in_turns(health(snapshot, self.min_in_sync), self._monotonic_ms)
        return Outline(
            self.cluster_id, snapshot.version, snapshot.topics, snapshot.nodes, snapshot.mounts, healthy, summed
        )

    async def rights(self, known: int | None = None) -> RightsView:
        """Rules, the names of credentials, and quotas. `known`: the version of an earlier answer."""
        version = self._rights_version  # before it is read: what is newer than it says is read once more
        if known == version:
            return RightsView(version, is_unchanged=True)
        snapshot = await self.snapshot()
        return RightsView(
            version,
            rules=snapshot.rules,
            credentials=tuple(map(view_of, snapshot.credentials)),
            quotas=snapshot.quotas,
        )

    async def _overview_steps(self) -> Generator[None, None, Overview]:
        return overview(await self._known())

    async def _sums_steps(self) -> Generator[None, None, Sums]:
        return sums(await self.snapshot())

    async def _trouble_steps(self) -> Generator[None, None, tuple[Trouble, ...]]:
        return kept_troubles(await self.snapshot(), self._clock_ms(), self.min_in_sync)

    async def courses(self, after_ms: int) -> Sequence[Course]:
        """How it went with the nodes after that, as they told this instance."""
        return self._courses.courses(after_ms)

    # Lists of the cluster UI --------------------------------------------------------------------------------------
    async def topic_page(self, ask: ListAsk) -> TopicPage:
        """Sums are a while old. Raises InvalidRequest, as the other pages."""
        summed = await self._sums.get()
        snapshot = await self.snapshot()
        healthy, _ = await in_turns(health(snapshot, self.min_in_sync), self._monotonic_ms)
        return topic_page(snapshot.topics, summed.topics, {one.topic: one.words for one in healthy.topics}, ask)

    async def shard_page(self, topic: str, ask: ListAsk) -> ShardPage:
        """Raises NotFound."""
        snapshot = await self.snapshot()
        found, shards = await self._parts()[0].read(lambda table: _of_topic(table, topic))
        steps = shard_page(found, shards, snapshot.nodes, self._clock_ms(), self.min_in_sync, ask)
        return (await in_turns(steps, self._monotonic_ms))[0]

    async def segment_page(self, topic: str, shard: int, ask: ListAsk, place: str = "") -> SegmentPage:
        """Raises NotFound."""
        snapshot = await self.snapshot()
        found, _ = await self._parts()[0].read(lambda table: _of_topic(table, topic, shards=0))
        one = await self.shard(ShardKey(found.topic_id, shard))
        steps = segment_page(found, one, snapshot.nodes, self._clock_ms(), self.min_in_sync, ask, place)
        return (await in_turns(steps, self._monotonic_ms))[0]

    async def trouble_page(self, ask: ListAsk, kind: str = "") -> TroublePage:
        """The troubles are a while old."""
        return trouble_page(await self._troubles.get(), ask, kind)

    async def _known(self) -> Known:
        faults = []
        if self.backup_stats.is_failing:
            faults.append(
                "snapshots of the metadata cannot be put into the bucket: the log of the meta service says why"
            )
        return Known(
            self.cluster_id,
            await self.snapshot(),
            self._clock_ms(),
            self._courses.last_heartbeat,
            await self.retirements(),
            self.why_no_changes,
            faults,
            has_leases=self._lives is not None,
            min_in_sync=self.min_in_sync,
        )

    async def deleted_segments(self) -> list[Segment]:
        return await self._parts()[0].read(ShardTable.deleted_segments)

    async def purged_topics(self) -> frozenset[UUID]:
        return await self._parts()[0].read(ShardTable.purged_topics)


def _of_topic(table: ShardTable, name: str, shards: int | None = None) -> tuple[Topic, list[Shard]]:
    """A topic by its name, with its first `shards` shards. Raises NotFound."""
    topic_id = table.state.topic_ids.get(name)
    if topic_id is None:
        raise NotFound(
            f"topic {name!r:.300} does not exist{did_you_mean(name, table.state.topic_ids)}; "
            "`stratalog topics list` shows all"
        )
    topic = table.topic(topic_id)
    count = topic.shard_count if shards is None else shards
    return topic, [table.shard(ShardKey(topic_id, shard)) for shard in range(count)]


def _living(table: ShardTable, segments: tuple[SegmentKey, ...]) -> tuple[SegmentKey, ...]:
    """Segments that may still be read: not DELETED ones."""
    found = ((key, table.state.find_segment(key)) for key in segments)
    return tuple(key for key, segment in found if segment is not None and segment.state is not SegmentState.DELETED)


def open_service(
    directory: Path,
    clock_ms: Callable[[], int],
    *,
    known_by: Path | None = None,
    spare: SpareRoom | None = None,
    backups: BackupPlace | None = None,
) -> MetaService:
    """A meta service over the embedded store in `directory`; `start` opens it.

    `known_by` is a file that tells of this store's cluster: with it an empty store is refused, not taken for a new one.
    `spare` is the room that it has set aside for when the disk is full.
    """
    from stratalog_meta.stores.rocksdb import RocksStore  # the other stores need no RocksDB

    return MetaService(RocksStore(directory, known_by=known_by, spare=spare), clock_ms, backups=backups)
