"""However many producers wrote in a segment, its seal is a small command, and so is what each watch sends of it."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.meta_api import wire
from stratalog.model.commands.table_commands import ReportReplica
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import SealRecord

INT64, INT32 = 2**63 - 1, 2**31 - 1
SMALL_BYTES = 1_024


@pytest.mark.fault("shard-number-producers-sealed")
def test_a_seal_of_any_number_of_producers_is_a_small_command_whatever_its_numbers_are() -> None:
    key = SegmentKey(UUID(int=1), INT32, INT32, INT64 - 1)
    producers = ProducerTally(INT64, b"d" * 16, INT64, INT64)
    seal = SealRecord(INT32, INT64 - 1, INT64, INT64, INT64, INT64, b"d" * 16, producers, tuple(range(9)), INT64)
    command = ReportReplica(key, seal, caller=Life(INT32, INT64))
    assert len(wire.wire_of(command).body.write(command)) < SMALL_BYTES
