"""What works on the shards of a node beside their logs. Made after the context and before the shards, which reach all
of it; it knows them by what it needs of them only."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog_node.shards.flush.flusher import Flusher
from stratalog_node.shards.read.reading import ShardReader
from stratalog_node.shards.read.time_lookups import TimeLookups
from stratalog_node.shards.seal.sealing import Sealing


@dataclass(frozen=True, slots=True)
class ShardWorkers:
    flusher: Flusher
    sealing: Sealing
    reader: ShardReader
    times: TimeLookups
