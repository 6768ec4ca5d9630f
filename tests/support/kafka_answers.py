"""The same inputs for Apache Kafka and for a node: what each answers, by name. Kafka's answers are recorded beside the
test that compares them (`tests/clients/test_kafka_answers.py`), with this command in `tests/`:

    ../.venv/bin/python -m support.kafka_answers > clients/kafka_answers.json

It starts Kafka as `make bench` does (Java 17 and Maven; the jars are in `.cache/peers` after the first time) and ends
it. With HOST:PORT it asks the server there, which must look for expired records each second and compact at once
(`log.retention.check.interval.ms=1000`, `log.cleaner.backoff.ms=100`). The answers to each batch of
`support.lying_batches` are a file of their own:

    ../.venv/bin/python -m support.kafka_answers --lying-batches > unit/serve/kafka_answers_to_lying_batches.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from support import emptied_batches, subscribed_expressions
from support import fetch_limits as fetches
from support.lying_batches import NOW_MS, batch, lying_batches
from support.raw_client import RawClient, batch_of
from support.waiting import eventually_sync

Answers = dict[str, Any]
_REPOSITORY = Path(__file__).parents[2]
_PATIENCE_S = 60.0
_TRY_AGAIN = (
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class Asked:
    """One server, reached as clients reach it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def admin(self) -> AdminClient:
        """A new one: it keeps no older epoch of a leader."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def make(self, topic: str, partitions: int = 1, **config: str) -> str:
        """A topic whose partitions have leaders."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(_PATIENCE_S)
        for number in range(partitions):
            self.offset(topic, OffsetSpec.latest(), number)
        return topic

    def offset(self, topic: str, spec: OffsetSpec, number: int = 0) -> int:
        """Once the client knows the newest epoch of the leader, which a roll changes in a node."""
        found: list[int] = []

        def is_answered() -> bool:
            admin, partition = self.admin(), TopicPartition(topic, number)
            try:
                found.append(admin.list_offsets({partition: spec})[partition].result(_PATIENCE_S).offset)
            except KafkaException as error:
                if error.args[0].code() not in _TRY_AGAIN:
                    raise
            return bool(found)

        eventually_sync(is_answered, _PATIENCE_S)
        return found[0]

    def produce(self, topic: str, data: bytes) -> int:
        """The error code."""
        with RawClient(self.bootstrap) as client:
            return client.produce(topic, data).error_code


def sequenced(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> bytes:
    return batch_of(b"v", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def first_sequences(asked: Asked) -> Answers:
    """Error codes of the first batches of an idempotent producer."""
    found = {"unknown topic: 0": [asked.produce("sequences-late", sequenced(0))]}
    late = asked.make("sequences-late")
    found["unknown topic: 0, made, 1, 0"] = [
        *found.pop("unknown topic: 0"),
        asked.produce(late, sequenced(1)),
        asked.produce(late, sequenced(0)),
    ]
    empty = asked.make("sequences-empty")
    found["empty: 5, 0"] = [asked.produce(empty, sequenced(5)), asked.produce(empty, sequenced(0))]
    later = asked.make("sequences-epoch")
    found["empty: 5 of epoch 3"] = [asked.produce(later, sequenced(5, epoch=3))]
    shared = asked.make("sequences-shared")
    found["after another producer: 5"] = [
        asked.produce(shared, sequenced(0, producer_id=8)),
        asked.produce(shared, sequenced(5)),
    ]
    return found


def times_in_headers(asked: Asked) -> Answers:
    """Two records, at NOW_MS and a millisecond later, whose header states another greatest time: the offset found for
    the time of each, for a later time, and for the greatest one."""
    stated = {"true": NOW_MS + 1, "-1": -1, "first": NOW_MS, "far ahead": NOW_MS + 10**9}
    found: Answers = {}
    for name, max_timestamp in stated.items():
        topic = asked.make(f"times-{len(found)}", retention_ms="-1")
        code = asked.produce(topic, batch(max_timestamp=max_timestamp))
        wanted = [OffsetSpec.for_timestamp(NOW_MS + delta) for delta in (0, 1, 2)]
        found[name] = [code, *(asked.offset(topic, spec) for spec in (*wanted, OffsetSpec.max_timestamp()))]
    return found


def idle_retention(asked: Asked) -> Answers:
    """The log start once the only batch of an idle partition is older than its retention."""
    found: Answers = {}
    for name, data in {"two old records": batch(), "a greatest time of -1": batch(max_timestamp=-1)}.items():
        topic = asked.make(f"idle-{len(found)}", retention_ms="3000")
        code = asked.produce(topic, data)
        eventually_sync(lambda topic=topic: asked.offset(topic, OffsetSpec.earliest()) > 0, _PATIENCE_S)
        found[name] = [code, asked.offset(topic, OffsetSpec.earliest())]
    return found


def fetch_limits(asked: Asked) -> Answers:
    """How much each partition adds to an answer."""
    topic = asked.make("fetch-limits", fetches.PARTITIONS, retention_ms="-1")
    fetches.fill(asked.bootstrap, topic)
    return fetches.answers(asked.bootstrap, topic)


def expressions(asked: Asked) -> Answers:
    """The topics that the regular expressions of group members match."""
    subscribed_expressions.make_topics(asked.make)
    return subscribed_expressions.answers(asked.bootstrap)


def batches_without_records(asked: Asked) -> Answers:
    """The batches in answers that begin in such a batch."""
    return emptied_batches.answers(asked.bootstrap, asked.make)


INPUTS: dict[str, Callable[[Asked], Answers]] = {
    "first sequences": first_sequences,
    "times in headers": times_in_headers,
    "idle retention": idle_retention,
    "fetch limits": fetch_limits,
    "subscribed expressions": expressions,
}
OF_KAFKA_ALONE: dict[str, Callable[[Asked], Answers]] = {"emptied batches": batches_without_records}
"""Inputs that no client can give to a node."""


def answers_to_lying_batches(asked: Asked) -> Answers:
    """The error code for each, all to one topic."""
    topic = asked.make("lies")
    return {name: asked.produce(topic, data) for name, data in lying_batches().items()}


@contextmanager
def kafka() -> Iterator[str]:
    """One node of it. Returns its address."""
    sys.path.append(str(_REPOSITORY / "bench"))
    peer = importlib.import_module("stratalog_bench.kafka_peer")
    cache = _REPOSITORY / ".cache" / "peers"
    cache.mkdir(parents=True, exist_ok=True)
    jars = peer.install(_REPOSITORY / "bench" / "peers", cache)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kafka"
        quick = {"log.retention.check.interval.ms": "1000", "log.cleaner.backoff.ms": "100"}
        port = peer.prepare(jars, place, quick | {"auto.create.topics.enable": "false"})
        server = peer.run(jars, place, port)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.process.kill()
            server.process.wait()


def written(answers: Any) -> str:
    """As JSON: a line for each key."""
    if not isinstance(answers, dict):
        return json.dumps(answers)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {written(value)}" for key, value in answers.items()) + "\n}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap", nargs="?", help="HOST:PORT of a running server")
    parser.add_argument("--lying-batches", action="store_true")
    options = parser.parse_args()
    # Raise SystemExit, so that the Kafka that was started ends too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))

    def answers(bootstrap: str) -> Answers:
        asked = Asked(bootstrap)
        if options.lying_batches:
            return answers_to_lying_batches(asked)
        return {name: ask(asked) for name, ask in (INPUTS | OF_KAFKA_ALONE).items()}

    if options.bootstrap:
        found = answers(options.bootstrap)
    else:
        with kafka() as bootstrap:
            found = answers(bootstrap)
    sys.stdout.write(written(found) + "\n")


if __name__ == "__main__":
    main()
