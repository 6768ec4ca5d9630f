"""Carries out retirements of nodes: the shell around the plan of `machines/plans/retirement`. Lives on the service's
event loop, as one task. A pass reads the durable metadata, plans each retirement, and submits the commands that follow;
the next pass repeats what failed. So a failed pass, or a change of the leader, costs only time. The rate of progress is
only kept here, in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stratalog.machines.copies.leaving_survey import Survey, survey_nodes
from stratalog.machines.plans.retirement import Action, AskMount, EndOpen, Planned, Release
from stratalog.machines.plans.retirement_input import Turns, is_due, is_recorded, is_tiered, mark_of, planned, turns_of
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.mount_commands import BeginMount
from stratalog.model.commands.retirement_commands import AdvanceRetirement, GiveUpOpen, ReleaseNode
from stratalog.model.errors import Rejected, StratalogError
from stratalog.model.metadata import ChangeSet, Node, NodeChanged, Snapshot, Vitals
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import Wait
from stratalog.model.topic import Topic
from stratalog.model.views.retirement_status import RetirementStatus, words_of
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import RetirementStats
from stratalog_meta.writer import TableWriter

_log = logger(__name__)

POLL_S: Final = 1.0
VERIFY_INTERVAL_MS: Final = 30_000
_RATE_MS: Final = 30_000
"""The rate is measured over this time."""
_WAIT_NOTE_MS: Final = 10_000
"""So often at most the numbers of a wait are written again."""


@dataclass(slots=True)
class _Progress:
    seen: deque[tuple[int, int]] = field(default_factory=deque)
    """When, and how many bytes remained."""
    mark: tuple[object, ...] | None = None
    since_ms: int = 0
    """When it got on last."""

    def note(self, now_ms: int, remaining: int, mark: tuple[object, ...]) -> None:
        if self.seen and remaining > self.seen[-1][1]:
            self.seen.clear()  # more was sealed, or found: samples from before that give no rate
        self.seen.append((now_ms, remaining))
        while len(self.seen) > 2 and now_ms - self.seen[0][0] > _RATE_MS:
            self.seen.popleft()
        if mark != self.mark:
            self.mark, self.since_ms = mark, now_ms

    @property
    def bytes_per_second(self) -> int:
        if len(self.seen) < 2:
            return 0
        (from_ms, more), (to_ms, less) = self.seen[0], self.seen[-1]
        return max(0, more - less) * 1_000 // max(to_ms - from_ms, 1)


class Retirements:
    def __init__(
        self,
        writer: TableWriter,
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        vitals: Callable[[], Mapping[int, Vitals]],
        stats: RetirementStats,
        *,
        verify_interval_ms: int = VERIFY_INTERVAL_MS,
        poll_s: float = POLL_S,
    ) -> None:
        """`clock_ms` is the service's, by which records have their times."""
        self._writer = writer
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._vitals = vitals
        self._stats = stats
        self._verify_interval_ms = verify_interval_ms
        self._poll_s = poll_s
        self._is_any = True
        """Some node has a retirement, as far as is known."""
        self._progress: dict[int, _Progress] = {}
        self._surveys: dict[int, Survey] = {}
        self._waits: dict[int, Wait | None] = {}
        """As the last pass found it; the records are updated less often."""
        self._told_ms: dict[int, int] = {}
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-retirements")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self, change_set: ChangeSet) -> None:
        """A durable change."""
        if any(isinstance(one, NodeChanged) and one.node.retirement is not None for one in change_set.changes):
            self._is_any = True

    def reread(self) -> None:
        """Changes were not told one by one."""
        self._is_any = True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                await self.run_pass()
            except StratalogError as error:
                _log.debug("retirements were not checked", error=str(error))
            except Exception:  # a bug in one pass must not stop a retirement forever (F48)
                _log.exception("checking retirements failed")

    # A look -----------------------------------------------------------------------------------------------------
    async def run_pass(self) -> None:
        """One pass over all leaving nodes. Costs nothing while no node leaves."""
        if not self._is_any:
            return
        snapshot = await self._writer.read(ShardTable.snapshot)
        due = [node for node in snapshot.nodes if is_due(node)]
        self._is_any = bool(due)
        self._stats.under_way = sum(not node.is_retired for node in due)
        self._stats.waiting = sum(node.retirement is not None and node.retirement.wait is not None for node in due)
        if not due:
            self._surveys, self._progress, self._stats.remaining_bytes = {}, {}, 0
            return
        self._surveys = await self._survey(snapshot)
        self._stats.remaining_bytes = sum(survey.remaining_bytes for survey in self._surveys.values())
        turns = turns_of(snapshot, self._vitals(), self._clock_ms())
        for node in due:
            await asyncio.sleep(0)  # each reads every node and topic, and thousands may leave
            await self._carry_out(node, self._plan(node, snapshot, turns))

    async def _survey(self, snapshot: Snapshot) -> dict[int, Survey]:
        steps = survey_nodes(snapshot, self.is_tiered)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: dict[int, Survey] = done.value
                return found
            await asyncio.sleep(0)

    async def survey_new(self, snapshot: Snapshot) -> None:
        """A request right after a retirement was accepted does not report that nothing remains: only the next pass
        knows that."""
        wished = {node.node_id for node in snapshot.nodes if is_due(node) and not node.is_retired}
        if not wished <= self._surveys.keys():
            self._surveys = await self._survey(snapshot)

    def is_tiered(self, topic: Topic) -> bool:
        """Whether nodes upload it, as they say; so it is held for as long as none of them has said anything."""
        return is_tiered(topic, self._vitals().values())

    def _plan(self, node: Node, snapshot: Snapshot, turns: Turns) -> Planned:
        survey, now_ms = self._surveys.get(node.node_id, Survey()), self._monotonic_ms()
        progress = self._progress.setdefault(node.node_id, _Progress())
        assert node.retirement is not None, "it leaves"
        progress.note(now_ms, survey.remaining_bytes, mark_of(node.retirement, survey))
        return planned(
            node,
            snapshot,
            survey,
            self._vitals(),
            turns,
            now_ms=self._clock_ms(),
            verify_interval_ms=self._verify_interval_ms,
            stalled_ms=now_ms - progress.since_ms,
        )

    async def _carry_out(self, node: Node, found: Planned) -> None:
        record = node.retirement
        assert record is not None
        why = found.why
        wait = None if why is None else Wait(why.reason, why.words, self._clock_ms())
        old = record.wait
        is_new = not is_recorded(record, found)
        is_old = wait is not None and old is not None and wait.words != old.words
        if is_new or (is_old and self._monotonic_ms() - self._told_ms.get(node.node_id, 0) >= _WAIT_NOTE_MS):
            self._told_ms[node.node_id] = self._monotonic_ms()
            await self._writer.submit(AdvanceRetirement(node.node_id, record, found.step, wait))
            if is_new:
                _log.info(
                    "retirement continues",
                    node_id=node.node_id,
                    step=found.step,
                    waits=None if wait is None else wait.reason,
                    words=None if wait is None else wait.words,
                )
            return  # what else is due rests on the record that is there now
        self._waits[node.node_id] = wait
        for action in found.actions:
            await self._act(node, action)

    async def _act(self, node: Node, action: Action) -> None:
        record = node.retirement
        assert record is not None
        match action:
            case Release():
                if await self._writer.submit(ReleaseNode(node.node_id, record)):
                    self._stats.released += 1
                    _log.warning(
                        "retired node is released", node_id=node.node_id, mode=record.mode, is_forced=record.is_forced
                    )
            case EndOpen(segments):
                for key in segments:
                    try:
                        await self._writer.submit(GiveUpOpen(key))
                    except Rejected as error:
                        _log.info("segment could not be given up", segment=str(key), error=str(error))
            case AskMount():
                try:
                    await self._writer.submit(BeginMount(node.node_id, record.storage_id, MountMode(record.mode)))
                except Rejected as error:
                    _log.warning("mount could not be started", node_id=node.node_id, error=str(error))

    # Status ----------------------------------------------------------------------------------------------------
    def status(self, node: Node) -> RetirementStatus:
        """The status of a node that leaves or has left, as the last pass found it."""
        record = node.retirement
        assert record is not None
        if record.wait is not None and (wait := self._waits.get(node.node_id)) is not None:
            record = replace(record, wait=replace(wait, since_ms=record.wait.since_ms))
        survey = self._surveys.get(node.node_id, Survey())
        progress = self._progress.get(node.node_id, _Progress())
        rate = 0 if node.is_retired else progress.bytes_per_second
        left_s = survey.remaining_bytes // rate if rate and survey.remaining_bytes else -1
        estimate = (survey.remaining_segments, survey.remaining_bytes, rate, left_s)
        words = words_of(record, *estimate)
        return RetirementStatus(
            node.node_id, node.is_alive, record, *estimate, words, survey.unheld, survey.unheld_count
        )
