"""However many producers a shard remembers, its seal is one request that the service takes."""

from __future__ import annotations

from uuid import UUID

from stratalog.meta_api import wire
from stratalog.model.commands import ReportReplica
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life
from stratalog.model.producers import BatchMemo, ProducerSnapshot
from stratalog.model.segment import SealRecord
from stratalog.settings.process import ProcessSettings
from stratalog_meta.api.server import LIMITS

INT64, INT32, INT16 = 2**63 - 1, 2**31 - 1, 2**15 - 1


def test_the_largest_table_of_producers_fits_into_one_request_whatever_its_numbers_are() -> None:
    field = ProcessSettings.model_fields["producer_id_max_per_shard"]
    most = next(limit.le for limit in field.metadata if hasattr(limit, "le"))
    batches = (BatchMemo(INT32, INT32, INT64, INT64),) * 5
    producers = tuple(ProducerSnapshot(INT64 - number, INT16, INT64, batches) for number in range(most))
    key = SegmentKey(UUID(int=1), INT32, INT32, INT64 - 1)
    seal = SealRecord(INT32, INT64 - 1, INT64, INT64, INT64, INT64, b"d" * 16, producers, tuple(range(9)), INT64)
    command = ReportReplica(key, seal, caller=Life(INT32, INT64))
    assert len(wire.wire_of(command).body.write(command)) < LIMITS.max_body_bytes
