"""Asks a Kafka how many shards the topics have that are to be written to.

The asking makes a topic that is not there, where the servers make topics by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from stratalog.model.errors import InvalidRequest, Unavailable

_ASK_S: Final = 30.0
_APPEAR_S: Final = 10.0
"""How long a topic may take that is being made."""


def shards_of_topics(servers: str, settings: Mapping[str, str], topics: Collection[str]) -> dict[str, int]:
    """Raises: InvalidRequest for a topic that is not there, and for settings; Unavailable."""
    from confluent_kafka import KafkaException, Producer

    try:
        client = Producer({"log_level": 2, **settings, "bootstrap.servers": servers})
    except KafkaException as error:
        raise InvalidRequest(f"the client's settings cannot be used: {error}") from error
    try:
        return {topic: _shards_of(client, topic) for topic in sorted(topics)}
    except KafkaException as error:
        raise Unavailable(f"the Kafka at {servers} does not say which topics it has: {error}") from error


def _shards_of(client: Any, topic: str) -> int:
    deadline = time.monotonic() + _APPEAR_S
    while True:
        found = client.list_topics(topic, timeout=_ASK_S).topics[topic]
        if found.error is None and found.partitions:
            return len(found.partitions)
        if time.monotonic() > deadline:
            raise InvalidRequest(f"the Kafka has no topic {topic} ({found.error}), and makes none: create it first")
        time.sleep(0.2)
