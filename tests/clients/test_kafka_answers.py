"""Answers of Apache Kafka 4.3.1 and of a node to the same inputs. `support.kafka_answers` has the inputs, and says with
which command the answers of Kafka in `kafka_answers.json` were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import SealRequest, Tier
from support import fetch_limits
from support.kafka_answers import INPUTS, OF_KAFKA_ALONE, Answers, Asked
from support.node_process import NodeProcess
from support.waiting import eventually_sync

KAFKA: dict[str, Answers] = json.loads(Path(__file__).with_name("kafka_answers.json").read_text())
_STORAGE_ERROR = 56
_UNIT = fetch_limits.UNIT
_AT_AN_INDEX_POINT = {
    # A read of more than the distance of two points of the sparse index ends at such a point, and opens no batch behind
    # it to see whether it still fits.
    "the first takes the whole answer": [[0, 0, 7, 7 * _UNIT], [1, 0, 1, _UNIT], [2, 0, 0, 0]],
}
DIFFERENT: dict[str, Answers] = {
    # A batch that was refused a moment before may still come: the first one of a producer is accepted first.
    "first sequences": {
        "unknown topic: 0, made, 1, 0": [3, _STORAGE_ERROR, 0],
        "empty: 5, 0": [_STORAGE_ERROR, 0],
        "empty: 5 of epoch 3": [_STORAGE_ERROR],
    },
    "fetch limits": _AT_AN_INDEX_POINT,
    # Kafka's library is RE2/J. RE2 itself also reads \C, any one byte, and two groups of one name.
    "subscribed expressions": {r"expr-\C": ["expr-7", "expr-a"], "(?P<a>a)(?P<a>a)": []},
}
_NOT_READ_FOR_AN_ANSWER_WITH_DATA = {
    # The reads of partitions 0 and 4 had reserved the room. A request to the object store for what is left behind them
    # is not worth its cost: the next fetch begins with these partitions.
    "the second is above what is left": [[0, 0, 1, _UNIT], [4, 0, 0, 0], [1, 0, 0, 0]],
    "a small one behind one that does not fit": [[0, 0, 1, _UNIT], [4, 0, 0, 0], [2, 0, 0, 0]],
}
DIFFERENT_IF_COLD: dict[tuple[int, ...], Answers] = {
    (0,): {},
    (0, 4): {},
    (1, 2): _AT_AN_INDEX_POINT,
    (0, 1, 2, 4): _NOT_READ_FOR_AN_ANSWER_WITH_DATA,
}
"""By the partitions whose records only the object store has."""


@pytest.mark.parametrize("name", INPUTS)
def test_a_node_answers_as_kafka_or_differs_for_a_reason(start_node: Callable[..., NodeProcess], name: str) -> None:
    node = start_node(settings={"log.retention.check.interval.ms": 1_000})
    assert INPUTS[name](Asked(node.bootstrap)) == KAFKA[name] | DIFFERENT.get(name, {})


@pytest.mark.fault("later-partition-fetch-limits")
def test_limits_hold_as_in_kafka_wherever_the_data_of_each_partition_is(
    start_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    settings = {"log.local.retention.ms": 1, "log.retention.check.interval.ms": 100, "remote.upload.interval.ms": 100}
    node = start_node(str(tmp_path / "bucket"), settings)
    asked, admin = Asked(node.bootstrap), AdminClient(node.admin)

    def is_in_store_alone(topic: str, shard: int) -> bool:
        found = [one for one in admin.segments(topic) if one.shard == shard and one.end_offset > one.base_offset]
        return bool(found) and all(one.tier is Tier.COLD for one in found)

    for cold, different in DIFFERENT_IF_COLD.items():
        topic = asked.make("cold" + "".join(map(str, cold)), fetch_limits.PARTITIONS)
        fetch_limits.fill(node.bootstrap, topic)
        for shard in cold:
            admin.seal(SealRequest(topic=topic, shard=shard))
            eventually_sync(lambda topic=topic, shard=shard: is_in_store_alone(topic, shard), 60)
        found = fetch_limits.answers(node.bootstrap, topic)
        assert found == KAFKA["fetch limits"] | different, f"cold: {cold}"


def test_kafkas_answers_are_recorded_for_each_input() -> None:
    assert KAFKA.keys() == INPUTS.keys() | OF_KAFKA_ALONE.keys()
