"""Producers and consumers that behave as clients of a Kafka cluster do: they find the leader, retry, and remember the
answers. A producer with an id repeats a batch until it knows the outcome; one without an id sends each batch once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from stratalog.model.append import AppendFailure
from stratalog.model.errors import StratalogError
from stratalog.model.ids import ShardKey
from stratalog_sim.broken import Broken
from stratalog_sim.environment.process import Ask, Process, Sleep, Task
from stratalog_sim.judging.judge import Judge
from stratalog_sim.node.serving import Fetch, Fetched, Produce
from support.history import Outcome, Sent

_TIMEOUT_MS = 600
_MAY_BE_THERE = (AppendFailure.OUTCOME_UNKNOWN, AppendFailure.NOT_ENOUGH_REPLICAS_LEFT)


@dataclass(slots=True)
class Sending:
    value: str
    count: int
    size: int
    sequence: int
    acks: int
    sent: list[Sent]


class Client(Process):
    """Knows where the leader was last; asks the others in turn."""

    def __init__(self, name: str, judge: Judge, nodes: list[str], **place: Any) -> None:
        super().__init__(name, **place)
        self.judge = judge
        self._nodes = nodes
        self._leader = 0
        self.is_over = False

    @property
    def leader(self) -> str:
        return self._nodes[self._leader % len(self._nodes)]

    def begin(self) -> None:
        """Write, or read, until `is_over`."""
        raise NotImplementedError

    def try_next_node(self) -> None:
        self._leader = (self._leader + 1) % len(self._nodes)  # nodes come and go


class Producer(Client):
    """Sends batches of one to three records to one shard."""

    def __init__(self, shard: ShardKey, producer_id: int, acks: int, **client: Any) -> None:
        super().__init__(**client)
        self.shard = shard
        self.producer_id = producer_id
        self.acks = acks
        self.sent: list[Sent] = []
        self._sequence = 0
        self._number = 0
        self._line: deque[Sending] = deque()
        """In flight or to be repeated, oldest first."""

    @property
    def has_unanswered(self) -> bool:
        return bool(self._line)

    def begin(self) -> None:
        self.spawn(self._go())

    def _next(self) -> Sending:
        rng = self.scheduler.rng
        self._number += 1
        count, value = rng.choice((1, 1, 2, 3)), f"{self.name}.{self._number}"
        sender = self.name if self.producer_id >= 0 else value
        # The records of a batch are adjacent, so the judge of the order needs only the first one.
        place = ("topic", self.shard.shard)
        sent = [Sent(f"{sender}/{i}", place, f"{value}.{i}".encode()) for i in range(count)]
        self.sent += sent
        sequence = self._sequence if self.producer_id >= 0 else -1
        self._sequence += count
        return Sending(value, count, rng.choice((10, 20, 40)), sequence, self.acks, sent)

    def _go(self) -> Task:
        rng = self.scheduler.rng
        while not self.is_over or self._line:
            if self.is_over and self.producer_id < 0:
                return
            if not self._line:
                yield Sleep(10 + rng.randrange(150))
            while not self.is_over and len(self._line) < 1 + rng.randrange(3):
                self._line.append(self._next())
            if not self._line:
                continue
            some = list(self._line)
            produce = Produce(
                self.shard,
                tuple(
                    (s.value, s.count, s.size, self.producer_id, 0 if self.producer_id >= 0 else -1, s.sequence, s.acks)
                    for s in some
                ),
            )
            try:
                answers = yield Ask(self.leader, produce, _TIMEOUT_MS, may_repeat=self.producer_id >= 0)
            except StratalogError:
                self.try_next_node()
                answers = (None,) * len(some)
            yield from self._take(some, answers)

    def _take(self, some: list[Sending], answers: tuple[Any, ...]) -> Task:
        is_refused = False
        for one, answer in zip(some, answers, strict=True):
            if isinstance(answer, int):
                self._acknowledged(one, answer)
                self._line.remove(one)
            elif self.producer_id < 0:
                self._line.remove(one)
                is_refused = is_refused or answer is not None
                if answer is not None and answer not in _MAY_BE_THERE:
                    for sent in one.sent:
                        sent.outcome = Outcome.FAIL
            else:
                is_refused = True
                if isinstance(answer, str):
                    # The log may forget a producer for good only if it lost records that no node had promised to keep.
                    if not self.judge.shards[self.shard].losses:
                        raise Broken(
                            "a producer continues at its last sequence number", f"{one.value} is refused: {answer}"
                        )
                    self._line.clear()
                    self.producer_id += 1_000
                    self._sequence = 0
                    break
        if is_refused:
            self.try_next_node()
            yield Sleep(40)

    def _acknowledged(self, one: Sending, base_offset: int) -> None:
        for number, sent in enumerate(one.sent):
            sent.outcome, sent.offset = Outcome.OK, base_offset + number
        if one.acks == -1:
            truth = self.judge.shards[self.shard]
            decided = truth.decided.get(base_offset)
            if (decided is None or decided.value != one.value) and one.value not in truth.excused:
                raise Broken("acknowledged records are decided", f"{one.value} at {base_offset}, where {decided} is")


class Consumer(Client):
    """Reads one shard from its start, and never goes back but for what was lost with its leave."""

    def __init__(self, shard: ShardKey, **client: Any) -> None:
        super().__init__(**client)
        self.shard = shard
        self.position = 0
        self.records: list[tuple[int, str]] = []
        """Offset and value, of this pass."""
        self.first_offset = 0
        self.is_at_end = False
        self.passes_what_is_lost = False
        """A reader of all that is owed skips each range that was lost with the last disk that had it."""
        self._losses = 0
        self._epoch = -1

    def begin(self) -> None:
        self.spawn(self._go())

    def go_on_from(self, offset: int) -> None:
        """What lies before it is gone."""
        if offset > self.position:
            self.position = self.first_offset = offset
            self.records = []

    def _go(self) -> Task:
        rng = self.scheduler.rng
        while not self.is_over:
            truth = self.judge.shards[self.shard]
            if truth.losses != self._losses:
                self._losses = truth.losses
                self.position, self.records = 0, []
            try:
                fetched = yield Ask(self.leader, self._fetch(), _TIMEOUT_MS)
            except StratalogError:
                self.try_next_node()
                continue
            if truth.losses != self._losses:
                continue
            self._take(fetched)
            yield Sleep(10 + rng.randrange(150) if fetched.error or not fetched.batches else 1 + rng.randrange(10))

    def _fetch(self) -> Fetch:
        return Fetch(self.shard, self.position, self._epoch)

    def _see(self, fetched: Fetched) -> None:
        self.judge.shown(self.name, self.shard, fetched.batches)

    def _take(self, fetched: Fetched) -> None:
        if fetched.error in ("not leader", "again"):
            self.try_next_node()
            if self.passes_what_is_lost:
                self.go_on_from(self._behind_what_is_lost())
        elif fetched.error == "out of range":
            self._out_of_range(fetched)
        elif not fetched.error:
            self.is_at_end = not fetched.batches
            self._see(fetched)
            for batch in fetched.batches:
                if batch.base_offset > self.position:
                    raise Broken("a consumer reads without a gap", f"{self.name} at {self.position} gets {batch}")
                for offset in range(max(batch.base_offset, self.position), batch.end_offset):
                    self.records.append((offset, f"{batch.value}.{offset - batch.base_offset}"))
                self.position = max(self.position, batch.end_offset)
                self._epoch = max(self._epoch, batch.epoch)

    def _behind_what_is_lost(self) -> int:
        return self.judge.lost_up_to(self.shard, self.position)

    def _out_of_range(self, fetched: Fetched) -> None:
        if self.position < fetched.log_start_offset:
            self.go_on_from(fetched.log_start_offset)
        elif not self.judge.shards[self.shard].losses:
            raise Broken("a consumer never goes back", f"{self.name} at {self.position} gets {fetched}")
