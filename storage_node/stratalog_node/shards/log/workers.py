"""The workers of a node's shards: flushing, sealing and other work beside the logs. Created after the context and
before the shards, which use all of it; workers know shards only by the interfaces that they need."""

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
