"""Asks a Kafka how many shards the topics have that are to be written to.

The asking makes a topic that is not there, where the servers make topics by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Final

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog_pipeline.sending.login import KafkaLogin

_ASK_S: Final = 30.0
_NOTHING: Final = ", and nothing was sent"
_APPEAR_S: Final = 10.0
"""How long a topic may take that is being made."""


def shards_of_topics(servers: str, login: KafkaLogin, topics: Collection[str]) -> dict[str, int]:
    """Raises: InvalidRequest for a topic that is not there, for settings, and where a login is refused; Forbidden for a
    topic that the client may not write to; WrongServer, Unavailable."""
    from confluent_kafka import KafkaException, Producer

    login.check(servers)
    settings = {"log_level": 2, "error_cb": lambda _: None, **login.of_librdkafka(), "bootstrap.servers": servers}
    try:
        client = Producer(settings)
    except KafkaException as error:
        raise InvalidRequest(f"the client's settings cannot be used: {error}") from None
    try:
        return {topic: _shards_of(client, topic, servers, login) for topic in sorted(topics)}
    except KafkaException as error:
        raise Unavailable(f"the Kafka at {servers} does not say which topics it has: {error}") from None


def _shards_of(client: Any, topic: str, servers: str, login: KafkaLogin) -> int:
    deadline = time.monotonic() + _APPEAR_S
    while True:
        found = client.list_topics(topic, timeout=_ASK_S).topics[topic]
        if found.error is None and found.partitions:
            return len(found.partitions)
        refused = None if found.error is None else login.refusal(found.error.code(), topic, servers, _NOTHING)
        if refused is not None:
            raise refused
        if time.monotonic() > deadline:
            raise InvalidRequest(f"the Kafka has no topic {topic} ({found.error}), and makes none: create it first")
        time.sleep(0.2)
