"""Failures of librdkafka become Stratalog's errors, which say whether a retry may help, and where to look."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog_cli.connect.kafka_clients import as_ours


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError._TIMED_OUT,
    ],
)
def test_what_passes_by_itself_may_be_tried_again(code: int) -> None:
    assert isinstance(as_ours(KafkaError(code)), Unavailable)


@pytest.mark.parametrize(
    "code", [KafkaError.INVALID_GROUP_ID, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP]
)
def test_what_will_fail_again_is_refused(code: int) -> None:
    assert isinstance(as_ours(KafkaError(code)), InvalidRequest)


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found"),
        KafkaError(KafkaError.LEADER_NOT_AVAILABLE),
    ],
)
def test_a_shard_without_a_leader_is_reported_with_where_to_look(error: KafkaError) -> None:
    told = as_ours(error)
    assert isinstance(told, Unavailable)
    assert "no node leads a shard of it now; try again" in str(told) and "GET /v1/troubles" in str(told)
