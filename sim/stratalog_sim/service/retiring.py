"""Makes nodes leave on request. In the simulator this takes the place of `stratalog_meta/retirements.py`, around the
same plan.

A check rests on one snapshot. Time passes between the snapshot and each step that the check asks for: other processes
change the table, and the service may die.
"""

from __future__ import annotations

from typing import Any, Protocol

from stratalog.machines.copies.leaving_survey import Survey, survey_nodes
from stratalog.machines.plans.retirement import AskMount, EndOpen, Planned, Release
from stratalog.machines.plans.retirement_input import is_due, is_recorded, mark_of, planned, turns_of
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import BeginMount
from stratalog.model.commands.retirement_commands import AdvanceRetirement, GiveUpOpen, ReleaseNode
from stratalog.model.commands.table_commands import Command
from stratalog.model.metadata import Node, Snapshot, Vitals
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import Wait
from stratalog.model.topic import Topic
from stratalog_sim.environment.process import Sleep, Task
from stratalog_sim.environment.scheduler import Scheduler

VERIFY_MS = 700
"""The least time between the two checks that allow the release of a node."""
_POLL_MS = 120


class RetiringService(Protocol):
    """What is used of the meta service."""

    scheduler: Scheduler
    table: ShardTable
    vitals: dict[int, Vitals]

    @property
    def clock_ms(self) -> int: ...

    def is_tiered(self, topic: Topic) -> bool: ...

    def do(self, command: Command[Any]) -> Any: ...


class Retiring:
    def __init__(self, meta: RetiringService) -> None:
        self._meta = meta
        self._progress: dict[int, tuple[tuple[object, ...], int]] = {}
        """Of each node where it stood, and since when it stands there."""

    def run(self) -> Task:
        """Without an end."""
        while True:
            yield Sleep(_POLL_MS)
            if any(is_due(entry.node) for entry in self._meta.table.state.nodes.values()):
                yield from self._look(self._meta.table.snapshot())

    def _look(self, snapshot: Snapshot) -> Task:
        surveys = self._survey(snapshot)
        for node in snapshot.nodes:
            if is_due(node):
                found = self._plan(node, snapshot, surveys.get(node.node_id, Survey()))
                yield from self._carry_out(node, found)

    def _survey(self, snapshot: Snapshot) -> dict[int, Survey]:
        steps = survey_nodes(snapshot, self._meta.is_tiered)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: dict[int, Survey] = done.value
                return found

    def _plan(self, node: Node, snapshot: Snapshot, survey: Survey) -> Planned:
        meta, now_ms = self._meta, self._meta.scheduler.now_ms
        assert node.retirement is not None, "it leaves"
        mark = mark_of(node.retirement, survey)
        before, since_ms = self._progress.get(node.node_id, (mark, now_ms))
        if mark != before:
            since_ms = now_ms
        self._progress[node.node_id] = mark, since_ms
        return planned(
            node,
            snapshot,
            survey,
            meta.vitals,
            turns_of(snapshot, meta.vitals, meta.clock_ms),
            now_ms=meta.clock_ms,
            verify_interval_ms=VERIFY_MS,
            stalled_ms=now_ms - since_ms,
        )

    def _carry_out(self, node: Node, found: Planned) -> Task:
        meta, record = self._meta, node.retirement
        assert record is not None
        yield Sleep(1 + meta.scheduler.rng.randrange(30))
        if not is_recorded(record, found):
            wait = None if found.why is None else Wait(found.why.reason, found.why.words, meta.clock_ms)
            meta.do(AdvanceRetirement(node.node_id, record, found.step, wait))
            return
        for action in found.actions:
            match action:
                case Release():
                    meta.do(ReleaseNode(node.node_id, record))
                case AskMount():
                    meta.do(BeginMount(node.node_id, record.storage_id, MountMode(record.mode)))
                case EndOpen(segments):
                    for key in segments:
                        meta.do(GiveUpOpen(key))
                        yield Sleep(1 + meta.scheduler.rng.randrange(30))
