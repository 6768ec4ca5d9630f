"""What a node with several data directories runs: the moves between them, and a watch over each further one."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.shards.copies.context import ShardContext
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.shards.moves.copy_mover import CopyMover, MovePolicy
from stratalog_node.shards.moves.copy_places import SecondFile
from stratalog_node.shards.moves.directory_watch import DirectoryWatch


class SeveralDirectories:
    """On a node with one directory it does nothing."""

    def __init__(
        self, context: ShardContext, shards: ShardDirectory, seconds: Iterable[SecondFile], policy: MovePolicy
    ) -> None:
        """`seconds`: what `choose_places` found twice."""
        self._layout = context.layout
        self.mover = CopyMover(context, shards, seconds, policy, steady_ms=lambda: context.turn.steady_ms)
        self.watch = DirectoryWatch(context, shards, context.settings.disk_stall_ms)

    def start(self) -> None:
        self.watch.start()
        self.mover.start()

    async def close(self) -> None:
        await self.mover.close()
        await self.watch.close()

    def add_metrics(self, metrics: MetricRegistry) -> None:
        if self._layout.further:
            metrics.add("stratalog_directories", self.watch.stats)
            metrics.add("stratalog_moves", self.mover.stats)
