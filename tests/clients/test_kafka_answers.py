"""Answers of Apache Kafka 4.3.1 and of a node to the same inputs. `support.kafka_answers` has the inputs, and says with
which command the answers of Kafka in `kafka_answers.json` were recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.kafka_answers import INPUTS, Answers, Asked
from support.node_process import NodeProcess

KAFKA: dict[str, Answers] = json.loads(Path(__file__).with_name("kafka_answers.json").read_text())
_STORAGE_ERROR = 56
DIFFERENT: dict[str, Answers] = {
    # A batch that was refused a moment before may still come: the first one of a producer is accepted first.
    "first sequences": {
        "unknown topic: 0, made, 1, 0": [3, _STORAGE_ERROR, 0],
        "empty: 5, 0": [_STORAGE_ERROR, 0],
        "empty: 5 of epoch 3": [_STORAGE_ERROR],
    }
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_node_answers_as_kafka_or_differs_for_a_reason(start_node: Callable[..., NodeProcess], name: str) -> None:
    node = start_node(settings={"log.retention.check.interval.ms": 1_000})
    assert INPUTS[name](Asked(node.bootstrap)) == KAFKA[name] | DIFFERENT.get(name, {})


def test_kafkas_answers_are_recorded_for_each_input() -> None:
    assert KAFKA.keys() == INPUTS.keys()
