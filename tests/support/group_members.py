"""Members of a consumer group, each polling in a thread of its own: what they own now, and what they have read.

A member commits after each poll by default. `leave` closes it in order; `vanish` stops polling and never says goodbye.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import confluent_kafka
import kafka


class Seen(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Member(Protocol):
    owned: set[int]
    seen: list[Seen]
    joined: int

    def leave(self) -> None: ...


class _PollingMember(threading.Thread):
    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.owned: set[int] = set()
        self.seen: list[Seen] = []
        self.joined = 0
        """How many assignments came."""
        self.lost: list[set[int]] = []
        """What each revocation took."""
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._says_goodbye = True

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._poll()
            if self._says_goodbye:
                self._close()
        except BaseException as error:
            self.failure = error

    def leave(self) -> None:
        self._stopping.set()
        self.join(30)
        assert self.failure is None, self.failure

    def _poll(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


def poll_messages(consumer: confluent_kafka.Consumer, wait_s: float = 0.05) -> list[confluent_kafka.Message]:
    """The messages that have come, some hundred at most.

    It polls one by one: if a leader changes, `consume` drops the messages that it has gathered and continues behind
    them (librdkafka 2.16).
    """
    found: list[confluent_kafka.Message] = []
    for at in range(500):
        message = consumer.poll(0 if at else wait_s)
        if message is None:
            break
        if message.error() is None:
            found.append(message)
    return found


class ConfluentMember(_PollingMember):
    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], **settings: Any) -> None:
        super().__init__(f"{group} confluent")
        self._is_cooperative = "cooperative" in str(settings.get("partition_assignment_strategy", ""))
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
            }
            | {key.replace("_", "."): value for key, value in settings.items()}
        )
        self.consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
        self.start()

    def _poll(self) -> None:
        messages = poll_messages(self.consumer)
        self.seen += [Seen(message.partition(), message.offset(), message.value()) for message in messages]
        if messages:
            # A rebalance may be under way: what was not committed is read again, which the tests allow for.
            with contextlib.suppress(confluent_kafka.KafkaException):
                self.consumer.commit(asynchronous=False)

    def _close(self) -> None:
        self.consumer.close()
        self.owned = set()

    def vanish(self) -> None:
        """Stops polling, without a word to the coordinator; its heartbeats end with max.poll.interval.ms."""
        self._says_goodbye = False
        self._stopping.set()
        self.join(30)

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        names = {partition.partition for partition in partitions}
        if self._is_cooperative:
            self.owned = self.owned | names
            consumer.incremental_assign(partitions)
        else:
            self.owned = names
            consumer.assign(partitions)
        self.joined += 1

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        names = {partition.partition for partition in partitions}
        self.owned = self.owned - names
        self.lost.append(names)
        if self._is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()


class Committed:
    """The offsets that members of a group got as committed, and the members that later began below them. Hold
    `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.told: dict[int, int] = defaultdict(int)
        self.went_back: list[str] = []


class CommittingMember(ConfluentMember):
    """Checks that each assignment begins at the committed offset before it, or above.

    A member that the group has removed without its knowledge may continue for a moment with records that it had
    fetched, which is not a step back.
    """

    def __init__(
        self, committed: Committed, bootstrap: str, group: str, topics: Sequence[str], **settings: Any
    ) -> None:
        self._committed = committed
        self._due: dict[int, int] = {}
        """Where a shard that was assigned begins, until its first message came."""
        super().__init__(bootstrap, group, topics, partition_assignment_strategy="range", **settings)

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        with self._committed.lock:
            self._due |= {partition.partition: self._committed.told[partition.partition] for partition in partitions}
        super()._assigned(consumer, partitions)

    def _poll(self) -> None:
        known = self._committed
        messages = poll_messages(self.consumer)
        with known.lock:
            for message in messages:
                self.seen.append(Seen(message.partition(), message.offset(), message.value()))
                self._check_position(message.partition(), message.offset())
        if not messages:
            return
        try:
            told = self.consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException:
            return  # a rebalance, or no coordinator for now: it was not told as committed
        with known.lock:
            for place in told:
                if place.error is None and place.offset >= 0:
                    known.told[place.partition] = max(known.told[place.partition], place.offset)

    def _check_position(self, shard: int, offset: int) -> None:
        due = self._due.pop(shard, 0)
        if offset < due:
            self._committed.went_back.append(f"shard {shard} began at {offset}, committed was {due}")


class KafkaPythonMember(_PollingMember):
    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], **settings: Any) -> None:
        super().__init__(f"{group} kafka-python")
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=50,
            **settings,
        )
        self.consumer.subscribe(list(topics), listener=_Listener(self))
        self.start()

    def _poll(self) -> None:
        found = self.consumer.poll(50)
        self._keep_joining()
        for records in found.values():
            self.seen += [Seen(record.partition, record.offset, record.value) for record in records]
        if found:
            with contextlib.suppress(kafka.errors.KafkaError):
                self.consumer.commit()

    def _keep_joining(self) -> None:
        """Works around kafka-python 3.0.12, which has the fault that the Java client fixed as KAFKA-9815.

        A rejoin for changed metadata does not mark itself as needed: when a poll times out while its JoinGroup is under
        way, no later poll looks at the answer, and the member owns nothing for good, whatever the broker.
        """
        coordinator = self.consumer._coordinator
        if coordinator._join_task is not None:
            coordinator.request_rejoin()

    def _close(self) -> None:
        self.consumer.close()
        self.owned = set()


class _Listener(kafka.ConsumerRebalanceListener):
    def __init__(self, member: KafkaPythonMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        names = {partition.partition for partition in revoked}
        self._member.owned = self._member.owned - names
        self._member.lost.append(names)

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.owned = self._member.owned | {partition.partition for partition in assigned}
        self._member.joined += 1


def share_all(members: Sequence[Member], shards: int) -> bool:
    """Every shard has one owner, and every member has work."""
    owned = [shard for member in members for shard in member.owned]
    return sorted(owned) == list(range(shards)) and all(member.owned for member in members)


def all_seen(members: Sequence[Member]) -> set[bytes]:
    return {seen.value for member in members for seen in list(member.seen)}
