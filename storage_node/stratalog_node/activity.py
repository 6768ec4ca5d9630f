"""The activity that this node reports with its heartbeats, for the cluster UI (`model.activity`).

Lives on the event loop. Cost: a check of each shard, less than a millisecond for 10,000; unfinished uploads are checked
so rarely that this takes at most a thousandth of the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stratalog.model.activity import MAX_STOPPED_TOLD, Activity, StoppedHere, UploadActivity
from stratalog_node.shards.copies.stats import ShardStats
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.tier.assembly import NodeTier
from stratalog_node.tier.cold.remote_reads import RemoteReads

_SHARE: Final = 1_000
_LONGEST_WORDS: Final = 300


class ActivityReporter:
    def __init__(
        self,
        shards: ShardDirectory,
        stats: ShardStats,
        remote: RemoteReads,
        tier: NodeTier,
        readiness: Callable[[], Mapping[str, str]],
        steady_ns: Callable[[], int],
        page_url: Callable[[], str] = str,
        damage: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._shards = shards
        self._stats = stats
        self._remote = remote
        self._tier = tier
        self._readiness = readiness
        self._steady_ns = steady_ns
        self._page_url = page_url
        self._damage = damage
        self._uploads: UploadActivity | None = None
        self._tier_trouble: str | None = None
        self._next_look_ns = 0

    def report(self) -> Activity:
        self._measure_uploads()
        stopped = self._shards.stopped()
        first = heapq.nsmallest(MAX_STOPPED_TOLD, stopped, key=lambda one: (one[0].topic.name, one[0].key.shard))
        stats, cold = self._stats, self._remote.cold
        troubles = [f"{what}: {why}" for what, why in self._readiness().items()]
        if self._tier_trouble is not None:
            troubles.append(f"object store: {self._tier_trouble}")
        troubles += self._damage()[:MAX_STOPPED_TOLD]
        return Activity(
            produced_bytes=stats.appended_bytes,
            fetched_bytes=stats.cached_read_bytes + stats.disk_read_bytes + (cold.stats.used_bytes if cold else 0),
            uploads=self._uploads,
            troubles=tuple(words[:_LONGEST_WORDS] for words in troubles),
            stopped_shards=len(stopped),
            stopped=tuple(
                StoppedHere(
                    shard.topic.name,
                    shard.key.shard,
                    stop.cause.value,
                    stop.reason[:_LONGEST_WORDS],
                    stop.next_step[:_LONGEST_WORDS],
                )
                for shard, stop in first
            ),
            page_url=self._page_url(),
        )

    def _measure_uploads(self) -> None:
        began = self._steady_ns()
        if self._tier.uploader is None or began < self._next_look_ns:
            return
        status = self._tier.uploader.status().uploader
        self._uploads = UploadActivity(
            status.unsent_bytes, status.unsent_segments, status.oldest_unsent_ms, len(status.held), status.store_away_ms
        )
        self._tier_trouble = self._tier.trouble()
        now = self._steady_ns()
        self._next_look_ns = now + _SHARE * (now - began)
