"""Clients that write unique values to a node that is being killed, and record the answers.

Each sender is a thread that lives through the node's deaths: it reconnects and continues. Every value is sent by the
sender once; whether it was acknowledged, and at which offset, goes into the `Ledger`, which `support.history` judges
later. Requires: topics exist, and the node comes back at the same address.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import confluent_kafka

from stratalog.formats.batches.records import NEXT_OFFSET, Record, decode_records, encode_batch
from stratalog.kafka.error_codes import ErrorCode
from support import kafka_oracle
from support.history import Log, Outcome, Place, Seen, Sent
from support.raw_client import RawClient

VALUE_BYTES = (40, 400)
LARGE_VALUE_BYTES = (4_000, 9_000)
"""Large enough for the node to prepare room behind them in the file."""
LARGE_VALUES = 1 / 15
_READ_BYTES = 256 << 10
_READ_DEADLINE_S = 240.0
_PAUSE_S = 0.02
_COMMIT_VERSION, _OFFSETS_VERSION = 2, 2
_RETRIABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_NOT_AVAILABLE,  # retention deleted it a moment ago; the next request gets the log start
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
}


class Ledger:
    """All sends, in order, and all group commits. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: list[tuple[int, Sent]] = []
        self._archive: list[tuple[int, Sent]] = []
        self._count = 0
        self._acknowledged: Counter[Place] = Counter()
        self._commits: dict[tuple[str, Place], tuple[int, int]] = {}
        self.wrong_answers: list[str] = []
        """What no client should ever have been told; a test fails on any."""

    def sending(self, sender: str, place: Place, value: bytes) -> Sent:
        send = Sent(sender, place, value)
        with self._lock:
            self._count += 1
            self._sent.append((self._count, send))
        return send

    def acknowledged(self, send: Sent, offset: int) -> None:
        with self._lock:
            send.offset, send.outcome = offset, Outcome.OK
            self._acknowledged[send.place] += 1

    def acknowledged_by_place(self) -> Counter[Place]:
        with self._lock:
            return self._acknowledged.copy()

    def copy(self, *, with_archive: bool = True) -> list[Sent]:
        with self._lock:
            recent = [(number, replace(send)) for number, send in self._sent]
            everything = sorted([*self._archive, *recent], key=lambda entry: entry[0]) if with_archive else recent
        return [send for _, send in everything]

    def archive(self, read_to: Mapping[Place, int]) -> None:
        """Put away what was acknowledged below these offsets: it has been read and judged, and will not change."""
        with self._lock:
            recent = self._sent
            self._sent = []
            for number, send in recent:
                is_done = send.outcome is Outcome.OK and send.offset < read_to.get(send.place, -1)
                (self._archive if is_done else self._sent).append((number, send))

    def count(self, outcome: Outcome) -> int:
        with self._lock:
            return sum(send.outcome is outcome for line in (self._archive, self._sent) for _, send in line)

    def committing(self, group: str, place: Place, offset: int) -> None:
        with self._lock:
            done, _ = self._commits.get((group, place), (-1, -1))
            self._commits[group, place] = (done, offset)

    def committed(self, group: str, place: Place, offset: int) -> None:
        with self._lock:
            _, tried = self._commits[group, place]
            self._commits[group, place] = (offset, tried)

    def commits(self) -> dict[tuple[str, Place], tuple[int, int]]:
        """Group and place to the offset that was acknowledged last (-1: none) and the one that was tried last."""
        with self._lock:
            return dict(self._commits)


class Worker(threading.Thread):
    """One client in a thread. `step` is called until `stop`; a lost connection is made again."""

    def __init__(self, name: str, ledger: Ledger, bootstrap: str, places: Sequence[Place], seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger = ledger
        self.bootstrap = bootstrap
        self.places = places
        self.chance = random.Random(f"{name}/{seed}")
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._paused = threading.Event()
        self._number = 0

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._paused.is_set():
                    self.idle()
                else:
                    self.step()
            self.finish()
        except BaseException as failure:
            self.failure = failure

    def step(self) -> None:
        raise NotImplementedError

    def idle(self) -> None:
        self._stopping.wait(_PAUSE_S)

    def finish(self) -> None: ...

    def wait_a_while(self, longest_s: float) -> None:
        self._stopping.wait(self.chance.random() * longest_s)

    def pause(self) -> None:
        """Sends nothing new for now; requests in flight continue."""
        self._paused.set()

    def resume(self) -> None:
        self._paused.clear()

    def stop(self) -> None:
        self._stopping.set()

    def next_value(self, place: Place) -> bytes:
        self._number += 1
        value = f"{self.name} {place[0]}-{place[1]} {self._number} ".encode()
        return value + b"." * max(0, self.chance.randint(*VALUE_BYTES) - len(value))


class IdempotentSender(Worker):
    """confluent-kafka with idempotence: acknowledged records must be there once, in order, through any death of the
    node."""

    def __init__(self, *args: Any, messages_per_s: float = 200.0) -> None:
        super().__init__(*args)
        self._pause_s = 1 / messages_per_s
        self._due = time.monotonic()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.num.messages": 20,
                # Never: after a record that is given up, others are sent under a new epoch, and may be there twice.
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": 5_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "socket.timeout.ms": 5_000,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
            }
        )

    def step(self) -> None:
        place = self.chance.choice(self.places)
        send = self.ledger.sending(self.name, place, self.next_value(place))
        with contextlib.suppress(BufferError):  # never sent then: a value that never shows
            self._producer.produce(place[0], send.value, partition=place[1], on_delivery=self._delivery_callback(send))
        self._due = max(self._due + self._pause_s, time.monotonic() - 1.0)
        while (left := self._due - time.monotonic()) > 0:
            self._producer.poll(left)

    def idle(self) -> None:
        self._producer.poll(_PAUSE_S)

    def _delivery_callback(self, send: Sent) -> Callable[[Any, Any], None]:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                # A repetition may be acknowledged without an offset.
                self.ledger.acknowledged(send, -1 if message.offset() is None else message.offset())
            elif error.fatal():
                self.ledger.wrong_answers.append(f"{self.name}: {error}")

        return on_delivery

    def finish(self) -> None:
        left = self._producer.flush(60)
        if left:
            self.ledger.wrong_answers.append(f"{self.name}: {left} messages were not delivered to a node that is up")


class PlainSender(Worker):
    """acks=all over one socket, without idempotence: a value whose answer is lost is not sent again."""

    def __init__(self, *args: Any, longest_rest_s: float = 0.04) -> None:
        super().__init__(*args)
        self._client: RawClient | None = None
        self._longest_rest_s = longest_rest_s

    def step(self) -> None:
        place = self.chance.choice(self.places)
        sends = [
            self.ledger.sending(self.name, place, self.next_value(place)) for _ in range(self.chance.randint(1, 4))
        ]
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch([Record(NEXT_OFFSET, now_ms, None, send.value) for send in sends])
        try:
            if self._client is None:
                self._client = RawClient(self.bootstrap, timeout=5.0)
            produced = self._client.produce(place[0], batch, partition=place[1])
        except OSError:
            self.disconnect()
            self._stopping.wait(_PAUSE_S)
            return
        if produced.error_code == 0:
            for number, send in enumerate(sends):
                self.ledger.acknowledged(send, produced.base_offset + number)
        elif produced.error_code not in _RETRIABLE:
            self.ledger.wrong_answers.append(f"{self.name}: {produced}")
        else:
            self._stopping.wait(_PAUSE_S)
        self.wait_a_while(self._longest_rest_s)

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.socket.close()
            self._client = None

    def finish(self) -> None:
        self.disconnect()


class Committer(Worker):
    """Commits rising offsets for a group without members; each commit that is acknowledged must survive."""

    def __init__(self, *args: Any, group: str) -> None:
        super().__init__(*args)
        self.group = group
        self._client: RawClient | None = None
        self._offset = 0

    def step(self) -> None:
        self._offset += 1
        offset = self._offset
        for place in self.places:
            self.ledger.committing(self.group, place, offset)
        try:
            if self._client is None:
                self._client = RawClient(self.bootstrap, timeout=5.0)
            codes = commit(self._client, self.group, dict.fromkeys(self.places, offset))
        except OSError:
            if self._client is not None:
                self._client.socket.close()
            self._client = None
            self._stopping.wait(_PAUSE_S)
            return
        for place, code in codes.items():
            if code == 0:
                self.ledger.committed(self.group, place, offset)
            elif code not in _RETRIABLE:
                self.ledger.wrong_answers.append(f"{self.name}: committing {place} gave {ErrorCode(code).name}")
        self.wait_a_while(0.05)

    def finish(self) -> None:
        if self._client is not None:
            self._client.socket.close()


class TailReader(Worker):
    """Reads the newest records while they are written: a record that was read once must be there forever."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: dict[Place, list[Seen]] = {place: [] for place in self.places}
        self._client: RawClient | None = None

    def step(self) -> None:
        place = self.chance.choice(self.places)
        seen = self.seen[place]
        try:
            if self._client is None:
                self._client = RawClient(self.bootstrap, timeout=10.0)
            offset = seen[-1].offset + 1 if seen else start_offset(self._client, place)
            records, code = _fetch(self._client, place, offset)
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                start = start_offset(self._client, place)
                if start <= offset:
                    self.ledger.wrong_answers.append(
                        f"{self.name}: {place} offset {offset} out of range, start {start}"
                    )
                seen += _fetch(self._client, place, start)[0]
            elif code and code not in _RETRIABLE:
                self.ledger.wrong_answers.append(f"{self.name}: {place} offset {offset}: {ErrorCode(code).name}")
            seen += records
        except OSError:
            if self._client is not None:
                self._client.socket.close()
            self._client = None
        self.wait_a_while(0.05)

    def finish(self) -> None:
        if self._client is not None:
            self._client.socket.close()


# Asking the node ----------------------------------------------------------------------------------------------------
def create_topics(bootstrap: str, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """Name to shards and settings."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, shards, 1, config=dict(config)) for name, (shards, config) in topics.items()]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def commit(client: RawClient, group: str, offsets: Mapping[Place, int]) -> dict[Place, int]:
    """Commit for a group without members. Returns: error codes."""
    request = kafka_oracle.request_class(8)
    topic_class = request.OffsetCommitRequestTopic
    topics = [
        topic_class(
            version=_COMMIT_VERSION,
            name=name,
            partitions=[
                topic_class.OffsetCommitRequestPartition(
                    version=_COMMIT_VERSION, partition_index=shard, committed_offset=offset, committed_metadata=""
                )
                for (topic, shard), offset in offsets.items()
                if topic == name
            ],
        )
        for name in sorted({topic for topic, _ in offsets})
    ]
    answer = client.call(
        8,
        _COMMIT_VERSION,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=topics,
    )
    return {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}


def committed_offsets(client: RawClient, group: str) -> dict[Place, int]:
    """Everything the group has committed. Raises: AssertionError while the coordinator is loading."""
    answer = client.call(9, _OFFSETS_VERSION, group_id=group, topics=None)
    assert answer.error_code == 0, ErrorCode(answer.error_code).name
    return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}


_LATEST, _EARLIEST = -1, -2


def _list_offset(client: RawClient, place: Place, timestamp: int) -> tuple[int, int]:
    """Returns: the offset, and the error code."""
    request = kafka_oracle.request_class(2)
    topic_class = request.ListOffsetsTopic
    partition = topic_class.ListOffsetsPartition(version=1, partition_index=place[1], timestamp=timestamp)
    answer = client.call(2, 1, replica_id=-1, topics=[topic_class(version=1, name=place[0], partitions=[partition])])
    result = answer.topics[0].partitions[0]
    return int(result.offset), int(result.error_code)


def start_offset(client: RawClient, place: Place) -> int:
    """The log start."""
    offset, error_code = _list_offset(client, place, _EARLIEST)
    if error_code:
        raise ConnectionError(f"ListOffsets of {place}: {ErrorCode(error_code).name}")
    return offset


def read_log(client: RawClient, place: Place, from_offset: int | None = None) -> Log:
    """A shard from `from_offset` (its log start when None, or when that has passed it) to its end. A fetch from a shard
    that is being healed returns the high watermark known so far; only a request for the end gets a retriable error."""
    deadline = time.monotonic() + _READ_DEADLINE_S
    start = start_offset(client, place)
    offset = start if from_offset is None else max(start, from_offset)
    records: list[Seen] = []
    first = offset
    end = _end_offset(client, place, deadline)
    while offset < end:
        assert time.monotonic() < deadline, f"{place} cannot be read at offset {offset} within {_READ_DEADLINE_S} s"
        fetched = client.fetch(
            place[0], offset, partitions=(place[1],), max_wait_ms=0, partition_max_bytes=_READ_BYTES
        )[0]
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and start_offset(client, place) > offset:
            return read_log(client, place)  # retention passed us
        if fetched.error_code and fetched.error_code not in _RETRIABLE:
            raise AssertionError(f"{place} at offset {offset}: {ErrorCode(fetched.error_code).name}")
        records += _records(fetched.records, offset)
        if records:
            offset = records[-1].offset + 1
    return Log(first, records)


def _end_offset(client: RawClient, place: Place, deadline: float) -> int:
    """The high watermark, once it is known."""
    while time.monotonic() < deadline:
        offset, error_code = _list_offset(client, place, _LATEST)
        if not error_code:
            return offset
        assert error_code in _RETRIABLE, f"ListOffsets of {place}: {ErrorCode(error_code).name}"
    raise AssertionError(f"the end of {place} is not known within {_READ_DEADLINE_S} s")


def read_logs(client: RawClient, places: Iterable[Place], since: Mapping[Place, int] | None = None) -> dict[Place, Log]:
    return {place: read_log(client, place, (since or {}).get(place)) for place in places}


def _fetch(client: RawClient, place: Place, offset: int) -> tuple[list[Seen], int]:
    fetched = client.fetch(place[0], offset, partitions=(place[1],), max_wait_ms=50, partition_max_bytes=64 << 10)[0]
    return _records(fetched.records, offset), fetched.error_code


def _records(data: bytes, from_offset: int) -> list[Seen]:
    found: list[Seen] = []
    view = memoryview(data)
    while len(view) >= 12:
        size = int.from_bytes(view[8:12], "big") + 12
        if size > len(view):
            break
        found += [
            Seen(record.offset, record.value or b"")
            for record in decode_records(view[:size])
            if record.offset >= from_offset
        ]
        view = view[size:]
    return found
