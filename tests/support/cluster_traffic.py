"""Clients of a cluster whose parts come and go: idempotent producers with acks=all, a group that reads along, a judge.

`flows` waits until every shard has acknowledged more than before; `judge` ends the clients, reads everything through
all bootstrap servers, and raises what the log shows that clients were not told, or the other way round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import confluent_kafka

from support.group_members import Committed, CommittingMember, Seen, poll_messages
from support.history import Anomaly, Log, Outcome, Place, anomalies, differences
from support.history import Seen as Read
from support.ledger import IdempotentSender, Ledger
from support.record_writers import with_writers
from support.waiting import eventually_sync

_FLOWS_S, _READ_S = 45.0, 60.0


class Traffic:
    def __init__(
        self, bootstrap: str, topic: str, shards: int, *, senders: int = 2, per_s: float = 150.0, members: int = 1
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.places: list[Place] = [(topic, shard) for shard in range(shards)]
        self.ledger = Ledger()
        self._senders = [
            IdempotentSender(f"sender-{n}", self.ledger, bootstrap, self.places, n, messages_per_s=per_s)
            for n in range(senders)
        ]
        for sender in self._senders:
            sender.start()
        self.group = f"group of {topic}"
        self.committed = Committed()
        self._members = [
            CommittingMember(self.committed, bootstrap, self.group, [topic], topic_metadata_refresh_interval_ms=500)
            for _ in range(members)
        ]

    def acknowledged(self) -> Counter[Place]:
        return self.ledger.acknowledged_by_place()

    def flows(self, count: int = 5, limit_s: float = _FLOWS_S) -> None:
        """Waits until each shard has acknowledged `count` more records. Raises AssertionError naming those that do
        not."""
        before = self.acknowledged()
        slow: list[Place] = []

        def all_flow() -> bool:
            now = self.acknowledged()
            slow[:] = [place for place in self.places if now[place] < before[place] + count]
            return not slow

        try:
            eventually_sync(all_flow, limit_s)
        except AssertionError:
            raise AssertionError(f"no {count} records were acknowledged within {limit_s} s in {slow}") from None

    def the_group_commits(self, limit_s: float = _FLOWS_S) -> None:
        """More than before, in each shard."""
        before = dict(self.committed.told)
        eventually_sync(lambda: all(self.committed.told[at] > before.get(at, 0) for _, at in self.places), limit_s)

    def end(self) -> None:
        """After a test that did not come to judge."""
        for worker in self._senders:
            worker.stop()
        self._leave()

    def _leave(self) -> None:
        for member in self._members:
            if member.is_alive():
                member.leave()

    def judge(self) -> int:
        """Returns how many records were acknowledged. Raises AssertionError with every anomaly."""
        for sender in self._senders:
            sender.stop()
        for sender in self._senders:
            sender.join(90)
            assert not sender.is_alive() and sender.failure is None, f"{sender.name}: {sender.failure!r}"
        logs = read_all(self.bootstrap, self.places)
        found: list[object] = [*self.ledger.wrong_answers, *anomalies(self.ledger.copy(), logs)]
        found += self._what_the_group_missed(logs)
        more = f"\nand {len(found) - 20} more" if found[20:] else ""
        assert not found, "\n".join(with_writers(self.bootstrap, found[:20])) + more
        return self.ledger.count(Outcome.OK)

    def _what_the_group_missed(self, logs: dict[Place, Log]) -> list[Anomaly | str]:
        """Every record came, what came is what the log has, and nothing that was committed went back."""
        wanted = {(place[1], read.offset) for place, log in logs.items() for read in log.records}

        def seen() -> Iterator[Seen]:
            return (one for member in self._members for one in list(member.seen))

        def missing() -> set[tuple[int, int]]:
            return wanted - {(one.partition, one.offset) for one in seen()}

        try:
            eventually_sync(lambda: not missing(), _READ_S)
        except AssertionError:
            return [f"the group did not get {len(missing())} records, such as shard and offset {min(missing())}"]
        finally:
            self._leave()
        found: list[Anomaly | str] = [*self.committed.went_back, *self._what_is_committed_no_more()]
        for place, log in logs.items():
            found += differences(place, log.records, [Read(*one[1:]) for one in seen() if one.partition == place[1]])
        return found

    def _what_is_committed_no_more(self) -> list[str]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            kept = consumer.committed([confluent_kafka.TopicPartition(*place) for place in self.places], _READ_S)
        finally:
            consumer.close()
        told = self.committed.told
        return [
            f"shard {one.partition}: {told[one.partition]} was told as committed, and {one.offset} is"
            for one in kept
            if one.offset < told[one.partition]
        ]


def read_all(bootstrap: str, places: list[Place]) -> dict[Place, Log]:
    """Each shard from its beginning to its end, by one consumer."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "a reader",
            "enable.auto.commit": False,
            "log_level": 0,
            "reconnect.backoff.max.ms": 200,
        }
    )
    shards = {place: confluent_kafka.TopicPartition(*place, 0) for place in places}
    ends = {place: consumer.get_watermark_offsets(shard, timeout=30)[1] for place, shard in shards.items()}
    logs: dict[Place, list[Read]] = {place: [] for place in places}
    consumer.assign(list(shards.values()))
    deadline = time.monotonic() + _READ_S
    try:
        while any((logs[place][-1].offset + 1 if logs[place] else 0) < end for place, end in ends.items()):
            assert time.monotonic() < deadline, f"read to {_ends(logs)} of {ends} within {_READ_S} s"
            for message in poll_messages(consumer):
                logs[message.topic(), message.partition()].append(Read(message.offset(), message.value()))
    finally:
        consumer.close()
    return {place: Log(0, records) for place, records in logs.items()}


def _ends(logs: dict[Place, list[Read]]) -> dict[Place, int]:
    return {place: records[-1].offset + 1 if records else 0 for place, records in logs.items()}
