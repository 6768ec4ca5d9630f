"""Each reason for which a batch is not taken has its code, and the ones that clients act on have the right one."""

from __future__ import annotations

import pytest

from stratalog.formats.batches.offered_batch import BatchFault
from stratalog.kafka.error_codes import ErrorCode
from stratalog.machines.leading.producer_table import SequenceFault
from stratalog.machines.leading.shard_life import Stop, StopCause
from stratalog.model.append import AppendFailure
from stratalog_node.serve.producing.produce import CODES


def test_no_reason_is_without_a_code() -> None:
    assert set(CODES) == {*BatchFault, *SequenceFault, *AppendFailure}
    assert ErrorCode.NONE not in CODES.values()


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (StopCause.DEPOSED, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (StopCause.DELETED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (StopCause.HEALING, ErrorCode.KAFKA_STORAGE_ERROR),
        (StopCause.FLUSH_FAILED, ErrorCode.KAFKA_STORAGE_ERROR),
        (StopCause.DATA_LOST, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_stopped_shard_is_answered_by_its_cause(cause: StopCause, code: ErrorCode) -> None:
    assert CODES[Stop("it is so", cause).failure] is code
