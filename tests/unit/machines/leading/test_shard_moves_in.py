"""A shard that another node led until now: its chain knows of what came before only the record and the seal."""

from __future__ import annotations

import uuid

from stratalog.machines.leading.chain_events import (
    AcknowledgeBatches,
    ActiveNamed,
    NameActive,
    OpenSegment,
    SegmentOpened,
)
from stratalog.machines.leading.leader_events import BatchesReceived, OfferedBatch, RollPolicy, SegmentRecord
from stratalog.machines.leading.producer_table import ProducerTable
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.producers import BatchMemo, ProducerSnapshot

NODE = 1
SHARD = ShardKey(uuid.UUID(int=1), 0)


def test_a_repetition_of_what_another_leader_committed_is_acknowledged_at_once() -> None:
    """Nothing more has to be written for it: what lies below the segment that opens is committed."""
    chain = ShardChain(SHARD, NODE, RollPolicy(segment_bytes=100, segment_ms=60_000))
    repeated = OfferedBatch(None, 10, 1, 0, 7, 0, 0, -1, None, "a")
    assert chain.step(BatchesReceived([repeated]), 0) == [NameActive()]
    committed_before = ProducerTable([ProducerSnapshot(7, 0, 0, (BatchMemo(0, 0, 10, 0),))])
    key = SegmentKey(SHARD.topic_id, SHARD.shard, 3, 20)
    (opening,) = chain.step(ActiveNamed(key, SegmentRecord(NODE, (NODE, 2), (NODE, 2), 0), committed_before), 0)
    assert isinstance(opening, OpenSegment)
    (answer,) = chain.step(SegmentOpened(), 0)
    assert isinstance(answer, AcknowledgeBatches)
    assert answer.batches == [repeated] and repeated.base_offset == 10
    assert chain.high_watermark == 20
