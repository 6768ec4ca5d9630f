"""Nodes as small as can be that `stratalog snapshot create` holds, lets go and asks to confirm, while records are
written and acknowledged, leaders change, nodes end, and answers are lost.

They answer the three requests as `storage_node/stratalog_node/admin/cuts.py` does. What happens between any two
requests is drawn from a seed. `refuted` looks at a cut with the knowledge of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from uuid import UUID

from stratalog.admin_api.cuts import Confirmed, CutRequest, Held, HeldShard, HoldRequest, Released
from stratalog.machines.reading.consistent_cut import ReportedEnd
from stratalog.model.errors import NotFound, OutcomeUnknown, Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.topic import Topic

A, R = TypeVar("A"), TypeVar("R")
TOPIC = Topic("orders", UUID(int=1), 4, 2, {}, 0, False)
NEVER = 1 << 60


@dataclass(slots=True)
class Record:
    written_at: int
    acknowledged_at: int = NEVER


@dataclass(slots=True)
class Log:
    """A shard, as its leaders have it."""

    leader: int
    epoch: int = 0
    taken_at_epoch: int = 0
    """The epoch at which the last leader took the shard from another node, or again after a fence."""
    records: list[Record] = field(default_factory=list)
    decided: int = 0
    """How many of the records can no longer be lost."""


@dataclass(slots=True)
class CutState:
    shards: dict[int, tuple[int, int]]
    """Epoch and end of each that it said it leads."""
    is_held: bool = True


class HeldNode:
    """One node's answers. It believes that it leads a shard that was taken from it, until it learns of that."""

    def __init__(self, world: HeldNodes, node_id: int) -> None:
        self._world, self.node_id = world, node_id
        self.cuts: dict[UUID, CutState] = {}
        self.believes: dict[int, tuple[int, int]] = {}
        """Of each shard that was taken from it: its last epoch and end."""
        self.is_down = False

    @property
    def is_held(self) -> bool:
        return any(cut.is_held for cut in self.cuts.values())

    def let_go(self) -> None:
        for cut in self.cuts.values():
            cut.is_held = False

    def hold_cut(self, request: HoldRequest) -> Held:
        self._arrives()
        logs = {shard: log for shard, log in enumerate(self._world.logs) if log.leader == self.node_id}
        told = {shard: (log.epoch, len(log.records)) for shard, log in logs.items()} | self.believes
        self.cuts = {request.cut_id: CutState(told)}
        shards = [
            HeldShard(
                topic=TOPIC.name,
                topic_id=TOPIC.topic_id,
                shard=shard,
                epoch=epoch,
                log_start_offset=0,
                end_offset=end,
            )
            for shard, (epoch, end) in told.items()
        ]
        self._world.answers()
        return Held(node_id=self.node_id, cluster_id="cluster", shards=shards)

    def release_cut(self, request: CutRequest) -> Released:
        self._arrives()
        cut = self._cut(request.cut_id)
        was_held, cut.is_held = cut.is_held, False
        self._world.answers()
        return Released(node_id=self.node_id, was_held=was_held)

    def confirm_cut(self, request: CutRequest) -> Confirmed:
        self._arrives()
        cut = self._cut(request.cut_id)
        self.believes.clear()  # it reads the metadata first
        logs = [(self._world.logs[shard], epoch, end) for shard, (epoch, end) in cut.shards.items()]
        is_led = all(log.leader == self.node_id and epoch >= log.taken_at_epoch for log, epoch, _ in logs)
        if is_led:  # it answers once all is in sync
            for log, _, end in logs:
                log.decided = max(log.decided, end)
        self._world.answers()
        return Confirmed(node_id=self.node_id, fault=None if is_led else f"node {self.node_id} does not lead as it did")

    def _arrives(self) -> None:
        self._world.goes_by()
        if self.is_down:
            raise Unavailable(f"node {self.node_id} is down")

    def _cut(self, cut_id: UUID) -> CutState:
        if cut_id not in self.cuts:
            raise NotFound(f"cut {cut_id} is not being made on node {self.node_id}")
        return self.cuts[cut_id]


class HeldNodes:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clients = [HeldNode(self, node_id) for node_id in range(1, self.rng.randint(2, 4) + 1)]
        self.logs = [Log(self.rng.choice(self.clients).node_id) for _ in range(TOPIC.shard_count)]
        self.is_rough = True
        """Leaders change, nodes end, holds time out, answers are lost."""
        self._now = 0
        for _ in range(20):
            self._write()

    # What happens ---------------------------------------------------------------------------------------------------
    def goes_by(self) -> None:
        """Some time, before a request arrives."""
        for _ in range(self.rng.randrange(6)):
            self._write()
        if self.is_rough and self.rng.random() < 0.1:
            self.rng.choice([self._takes_over, self._takes_over, self._times_out, self._ends, self._rolls])()
        for node in self.clients:
            node.is_down = node.is_down and self.is_rough and self.rng.random() < 0.8

    def answers(self) -> None:
        """Raises: OutcomeUnknown for an answer that is lost."""
        self.goes_by()
        if self.is_rough and self.rng.random() < 0.03:
            raise OutcomeUnknown("the answer was lost")

    def _write(self) -> None:
        self._now += 1
        log = self.rng.choice(self.logs)
        leader = self.clients[log.leader - 1]
        if leader.is_held or leader.is_down:
            return
        waiting = [one for one in log.records if one.acknowledged_at == NEVER]
        if waiting and self.rng.random() < 0.7:
            for one in waiting:
                one.acknowledged_at = self._now
            log.decided = len(log.records)
        else:
            log.records.append(Record(self._now))

    def _takes_over(self) -> None:
        """Another node takes over a shard, with a random part of the unacknowledged records."""
        log = self.rng.choice(self.logs)
        before = self.clients[log.leader - 1]
        before.believes[self.logs.index(log)] = log.epoch, len(log.records)
        del log.records[self.rng.randint(log.decided, len(log.records)) :]
        log.leader = self.rng.choice(self.clients).node_id
        self.clients[log.leader - 1].believes.pop(self.logs.index(log), None)
        log.epoch += 1
        log.taken_at_epoch = log.epoch

    def _rolls(self) -> None:
        self.rng.choice(self.logs).epoch += 1

    def _times_out(self) -> None:
        self.rng.choice(self.clients).let_go()

    def _ends(self) -> None:
        """And is started again later: what it led it does not lead any more, and knows of no cut."""
        node = self.rng.choice(self.clients)
        for log in self.logs:
            if log.leader == node.node_id:
                log.epoch += 1
                log.taken_at_epoch = log.epoch
        node.cuts, node.is_down = {}, True
        node.believes.clear()

    # The judge ------------------------------------------------------------------------------------------------------
    def refuted(self, ends: Mapping[ShardKey, ReportedEnd]) -> str | None:
        """Why these ends are not a consistent cut."""
        inside, outside = list[Record](), list[Record]()
        for shard, log in enumerate(self.logs):
            end = ends[ShardKey(TOPIC.topic_id, shard)].end_offset
            if end > len(log.records):
                return f"shard {shard} has {len(log.records)} records, the cut {end}"
            inside += log.records[:end]
            outside += log.records[end:]
        last = max((one.written_at for one in inside), default=0)
        missing = [one for one in outside if one.acknowledged_at < last]
        return f"{missing[0]} is missing, a record of {last} is in the cut" if missing else None


class InDrawnOrder:
    """An executor whose calls run one after the other, each as a whole, in an order that the world draws."""

    def __init__(self, world: HeldNodes) -> None:
        self._world = world

    def __call__(self, _threads: int) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, ask: Callable[[A], R], of: Sequence[A]) -> Iterator[R]:
        outcomes: dict[int, R | Exception] = {}
        for at in self._world.rng.sample(range(len(of)), len(of)):
            try:
                outcomes[at] = ask(of[at])
            except Exception as error:
                outcomes[at] = error
        return _results(outcomes[at] for at in range(len(of)))


def _results(outcomes: Iterable[Any]) -> Iterator[Any]:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome
