"""All measures of one node, and when they are taken: before a page of metrics is made, and for the history in the
UI."""

from __future__ import annotations

import time
from collections.abc import Callable

from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.groups.coordinator import GroupCoordinator
from stratalog_node.measures.groups import GroupMeasures
from stratalog_node.measures.history import History, Sums
from stratalog_node.measures.log_ends import LogEnds
from stratalog_node.measures.series import Bounded, Throttled
from stratalog_node.measures.shards import ShardMeasures
from stratalog_node.replication.following import Following
from stratalog_node.replication.peer import Asker
from stratalog_node.shards.assembly import LocalShards
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.tier.assembly import NodeTier


class NodeMeasures:
    def __init__(
        self,
        metrics: MetricRegistry,
        *,
        most_series: int,
        catalog: Catalog,
        local: LocalShards,
        following: Following,
        tier: NodeTier,
        groups: GroupCoordinator,
        asker: Asker,
        wall_ms: Callable[[], int],
    ) -> None:
        self._stats = local.context.stats
        bounded = Bounded(most_series, metrics)
        unsent = tier.unsent if tier.uploader is not None else None
        self._ends = LogEnds(catalog, local.directory, asker)
        self.shards = ShardMeasures(catalog, local.directory, self._stats, following, unsent, bounded)
        self.groups = GroupMeasures(groups.hosted, groups.subscribed, catalog, self._ends, bounded)
        self._unsent = unsent
        self._measure_groups = Throttled(self.groups.measure, time.monotonic_ns)
        self.shards.add_metrics(metrics)
        self.groups.add_metrics(metrics)
        metrics.survey_with(Throttled(self.shards.measure, time.monotonic_ns))
        metrics.survey_with(self._measure_groups)
        self.history = History(self._sums, wall_ms)

    async def _sums(self) -> Sums:
        await self._measure_groups()
        waiting = self._unsent() if self._unsent is not None else ()
        topics = self._stats.topics.values()
        return Sums(
            self._stats.appended_bytes,
            sum(one.fetched_bytes for one in topics),
            sum(unsent_bytes for _, unsent_bytes, _ in waiting),
            self.groups.lag_records,
        )

    def close(self) -> None:
        self._ends.close()
