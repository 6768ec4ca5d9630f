"""The tiers of one node, put together: uploads, retention and the janitor over one store, or over none.

Without a store only retention and the deletion of local files run. Order of start and stop, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.machines.tiering.retention import DiskPressure
from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.meta_api.client import MetaClient
from stratalog.model.counting import counted
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import life_name
from stratalog.model.segment import Segment
from stratalog.objects.store import ObjectStore
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.age_clock import NodeAgeClock
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.direct_room import DirectRoom
from stratalog_node.shards.copies.events import ShardEvents
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.shards.copies.shard_view import LocalCopies, Shards
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.sweep.janitor import Janitor, JanitorSchedule
from stratalog_node.tier.sweep.retention import RetentionSchedule, RetentionWorker
from stratalog_node.tier.uploads.uploader import NodeUploader

_MOST_DELETION_INTERVAL_MS = 30_000
_LEAST_DELETION_INTERVAL_MS = 100


def upload_limits(settings: ProcessSettings) -> UploadLimits:
    return UploadLimits(
        chunk_bytes=settings.remote_upload_chunk_bytes,
        bundle_bytes=settings.remote_upload_bundle_bytes,
        interval_ms=settings.remote_upload_interval_ms,
        direct_interval_ms=settings.direct_commit_interval_ms,
        direct_bytes=settings.direct_commit_bytes,
        in_flight_bytes=settings.remote_upload_max_inflight_bytes,
        put_timeout_ms=settings.remote_upload_timeout_ms,
    )


def retention_schedule(settings: ProcessSettings) -> RetentionSchedule:
    return RetentionSchedule(
        interval_ms=settings.log_retention_check_interval_ms,
        hard_limit_bytes=settings.local_hard_limit_bytes,
    )


def janitor_schedule(settings: ProcessSettings) -> JanitorSchedule:
    interval_ms = min(_MOST_DELETION_INTERVAL_MS, max(_LEAST_DELETION_INTERVAL_MS, settings.remote_delete_delay_ms))
    return JanitorSchedule(
        interval_ms=interval_ms,
        delete_delay_ms=settings.remote_delete_delay_ms,
        orphan_grace_ms=settings.remote_orphan_grace_ms,
        sweep_interval_ms=settings.remote_orphan_sweep_interval_ms,
        bundle_max_age_ms=settings.remote_bundle_max_age_ms,
    )


class NodeTier:
    def __init__(
        self,
        *,
        node_id: int,
        node_epoch: int,
        storage_id: str,
        cluster_id: str,
        settings: ProcessSettings,
        meta: MetaClient,
        catalog: Catalog,
        shards: Shards,
        events: ShardEvents,
        copies: LocalCopies,
        local_bytes: Callable[[], Awaitable[int]],
        store: ObjectStore | None,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        age_clock: NodeAgeClock,
        on_pressure: Callable[[DiskPressure | None], None],
        table_of: Callable[[Segment], Awaitable[bytes]],
        peers: PeerReads,
        direct_room: DirectRoom | None = None,
    ) -> None:
        self.stats = TierStats()
        self.names = ObjectNames("", cluster_id)
        self.uploader: NodeUploader | None = None
        self._age_clock = age_clock
        self._monotonic_ms = monotonic_ms
        if store is not None:
            self.uploader = NodeUploader(
                node_id=node_id,
                cluster_id=cluster_id,
                meta=meta,
                shards=shards,
                events=events,
                catalog=catalog,
                store=store,
                limits=upload_limits(settings),
                clock_ms=monotonic_ms,
                rng=random.Random(),
                holder=life_name(node_id, node_epoch),
                names=self.names,
                stats=self.stats,
                storage_id=storage_id,
                doubt_ms=settings.remote_orphan_grace_ms,
                table_of=table_of,
                peers=peers,
                direct_room=direct_room,
            )
        self.retention = RetentionWorker(
            node_id=node_id,
            meta=meta,
            shards=shards,
            copies=copies,
            catalog=catalog,
            store=store,
            names=self.names,
            schedule=retention_schedule(settings),
            clock_ms=age_clock,
            stats=self.stats,
            on_pressure=on_pressure,
            local_bytes=local_bytes,
            unsent_bytes=self._unsent_bytes,
            may_free=lambda: self.fork is None,
        )
        self.janitor = Janitor(
            node_id=node_id,
            meta=meta,
            shards=shards,
            copies=copies,
            catalog=catalog,
            store=store,
            uploader=self.uploader,
            names=self.names,
            schedule=janitor_schedule(settings),
            clock_ms=clock_ms,
            monotonic_ms=monotonic_ms,
            stats=self.stats,
        )

    @property
    def fork(self) -> str | None:
        """Why this node neither uploads nor sweeps, because a copy of it wrote to the bucket; None when none did."""
        return self.uploader.claim.fork if self.uploader is not None else None

    async def asked_store(self) -> None:
        """Returns once the object store has answered for the first time, or has failed to; at once without one."""
        if self.uploader is not None:
            await self.uploader.preflight.is_asked.wait()

    @property
    def is_store_doubted(self) -> bool:
        """It has not answered yet, or cannot be used: the log says why, or will."""
        return self.uploader is not None and not self.uploader.preflight.has_passed

    def trouble(self) -> str | None:
        """Why nothing is uploaded, or some segments not any further, in words for an operator; None when all is."""
        if self.uploader is None:
            return None
        if self.fork is not None:
            return f"this node neither uploads nor sweeps: {self.fork}"
        if (why := self.uploader.preflight.trouble) is not None:
            return f"it cannot be used: {why}"
        status = self.uploader.status().uploader
        held = status.held
        if not held and status.directory_trouble is not None:
            return f"what a retired node's directory alone has cannot be uploaded now: {status.directory_trouble}"
        if not held:
            return None
        key, reason = held[0]
        return f"{counted(len(held), 'segment')} cannot be uploaded any further, such as {key}: {reason}"

    def unsent(self) -> list[tuple[SegmentKey, int, int]]:
        """(segment, committed bytes that are not in the store, the oldest one's age in ms). Cost: a check of each
        unfinished segment."""
        now_ms = self._monotonic_ms()
        found = [] if self.uploader is None else self.uploader.unsent()
        return [
            (one.key, one.unsent_bytes, 0 if (since := one.waiting_since_ms) is None else max(0, now_ms - since))
            for one in found
        ]

    def _unsent_bytes(self) -> int:
        """Unsent bytes on this node's disk."""
        if self.uploader is None:
            return 0
        status = self.uploader.status().uploader
        return status.unsent_bytes - status.mounted_unsent_bytes

    def _measure_clock(self) -> None:
        self.stats.age_behind_ms = self._age_clock.behind_ms

    async def start(self) -> None:
        if self.uploader is not None:
            await self.uploader.start()
        await self.retention.start()
        await self.janitor.start()

    async def close(self) -> None:
        await self.janitor.close()
        await self.retention.close()
        if self.uploader is not None:
            await self.uploader.close()

    def add_metrics(self, metrics: MetricRegistry) -> None:
        metrics.add("stratalog_tier", self.stats)
        metrics.refresh_with(self._measure_clock)
        if self.uploader is not None:
            metrics.refresh_with(self.uploader.status)
