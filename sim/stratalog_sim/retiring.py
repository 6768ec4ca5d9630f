"""Has nodes leave that are wished to: stands in for `stratalog_meta/retirements.py`, around the same plan.

A look rests on one snapshot; between it and what it asks for, and between any two of these, time goes by: others change
the table, and the service may die.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.machines.leaving import is_waited_for_in_vain
from stratalog.machines.leaving_survey import Survey, survey_nodes
from stratalog.machines.recovery_rule import is_quorum
from stratalog.machines.retirement import AskMount, GiveUpOpen, Planned, Release
from stratalog.machines.retirement_looks import is_due, planned, says
from stratalog.model.commands import BeginRecovery, MoveReplicas, ReplicaMove, SealUnclean
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mount_commands import BeginMount
from stratalog.model.mounts import MountMode
from stratalog.model.retirement import Wait
from stratalog.model.retirement_commands import AdvanceRetirement, ReleaseNode
from stratalog.model.segment import SegmentState
from stratalog_sim.process import Sleep, Task

if TYPE_CHECKING:
    from stratalog_sim.meta import Meta

VERIFY_MS = 700
"""Between the two looks that let a node go."""
_POLL_MS = 120


class Retiring:
    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self._progress: dict[int, tuple[int, int]] = {}
        """Of each node what remained, and since when it is that much."""

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
        remaining, since_ms = self._progress.get(node.node_id, (-1, now_ms))
        if remaining != survey.remaining_bytes:
            since_ms = now_ms
        self._progress[node.node_id] = survey.remaining_bytes, since_ms
        return planned(
            node,
            snapshot,
            survey,
            meta.vitals,
            now_ms=meta.clock_ms,
            verify_interval_ms=VERIFY_MS,
            stalled_ms=now_ms - since_ms,
        )

    def _carry_out(self, node: Node, found: Planned) -> Task:
        meta, record = self._meta, node.retirement
        assert record is not None
        yield Sleep(1 + meta.scheduler.rng.randrange(30))
        if not says(record, found):
            wait = None if found.why is None else Wait(found.why.reason, found.why.words, meta.clock_ms)
            meta.do(AdvanceRetirement(node.node_id, record, found.step, wait))
            return
        for action in found.actions:
            match action:
                case Release():
                    meta.do(ReleaseNode(node.node_id, record))
                case AskMount():
                    meta.do(BeginMount(node.node_id, record.storage_id, MountMode(record.mode)))
                case GiveUpOpen(segments):
                    for key in segments:
                        yield from self._give_up(key)

    def _give_up(self, key: SegmentKey) -> Task:
        """Ends it at what is known of it. Where no replica lives, one that does makes up what nobody has."""
        meta = self._meta
        segment = meta.do(BeginRecovery(key))
        yield Sleep(1 + meta.scheduler.rng.randrange(30))
        if segment is None:
            return  # refused
        if segment.state is SegmentState.ACTIVE:
            state = meta.table.state
            by_quorum = is_quorum(state.topic(key.topic_id).settings)
            if is_waited_for_in_vain(
                state.segment(key), by_quorum=by_quorum, is_alive=state.is_alive, given_up=state.is_given_up
            ):
                meta.do(SealUnclean(key))
        elif segment.state is SegmentState.SEALING and segment.handed.source is None:
            snapshot = meta.table.snapshot()
            stay = [node.node_id for node in snapshot.nodes if node.is_alive and not node.is_leaving]
            shard = next(one for one in snapshot.shards if one.key == key.shard_key)
            led = next((one.leader for one in shard.segments if one.epoch > key.epoch and one.leader in stay), None)
            added = tuple([led] if led is not None else stay[:1])
            meta.do(MoveReplicas((ReplicaMove(key, segment.replicas, added),)))
            yield Sleep(1 + meta.scheduler.rng.randrange(30))
            meta.do(SealUnclean(key))
