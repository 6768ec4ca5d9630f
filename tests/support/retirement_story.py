"""Retirements over a shard table in a test's hands: performs the passes of the service's leader one at a time.

It keeps nothing between two passes except the table, so each pass could be another leader's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace

from stratalog.machines.copies.copy_repair import plan_moves
from stratalog.machines.copies.leaving_survey import Survey, survey_nodes
from stratalog.machines.plans.retirement import (
    EndOpen,
    Observed,
    Planned,
    Release,
    Served,
    goes_before,
    plan,
    preflight,
)
from stratalog.machines.plans.retirement_input import Turns, turns_of
from stratalog.machines.plans.verification_turns import node_on_turn
from stratalog.model.commands.retirement_commands import (
    AdvanceRetirement,
    GiveUpOpen,
    ReleaseNode,
    ReportInventory,
    ReportSighting,
    RetireNode,
)
from stratalog.model.commands.table_commands import MoveReplicas, SealSegment
from stratalog.model.errors import Rejected
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node, Vitals
from stratalog.model.retirement import Retirement, RetireStep, Wait
from stratalog.model.segment import SegmentState
from stratalog.model.topic import Topic
from support.table_stories import TableStory, record_of

GIB = 1 << 30
INTERVAL_MS = 1_000


def is_tiered(topic: Topic) -> bool:
    return topic.settings.get("remote.storage.enable") == "true"


class RetirementStory(TableStory):
    has_store = True
    store_away_ms = 0
    stalled_ms = 0
    mount = Served.NOT_NEEDED
    vitals: Mapping[int, Vitals] = {node_id: Vitals(50 * GIB, 100 * GIB, True) for node_id in range(1, 20)}

    def node(self, node_id: int) -> Node:
        return self.table.state.nodes[node_id].node

    def record(self, node_id: int) -> Retirement:
        record = self.node(node_id).retirement
        assert record is not None, "its retirement was not requested"
        return record

    def survey(self, node_id: int) -> Survey:
        steps = survey_nodes(self.table.snapshot(), is_tiered)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: Survey = done.value.get(node_id, Survey())
                return found

    def planned(self, node_id: int) -> Planned:
        snapshot, node, survey = self.table.snapshot(), self.node(node_id), self.survey(node_id)
        earlier = {one.node_id for one in snapshot.nodes if one.node_id != node_id and goes_before(one, node)}
        blocks = preflight(node, snapshot.nodes, snapshot.topics, survey, self.vitals, earlier)
        turns, next_check_by = self.turns(), node_on_turn(node, snapshot.nodes)
        return plan(
            Observed(
                node,
                survey,
                blocks,
                self.now_ms,
                INTERVAL_MS,
                has_store=self.has_store,
                store_away_ms=self.store_away_ms,
                stalled_ms=self.stalled_ms,
                mount=self.mount,
                is_in_line=turns.is_in_line(node_id),
                next_check_by=next_check_by,
                has_other_checks=next_check_by is not None and turns.looks.get(next_check_by, 0) > 1,
            )
        )

    def turns(self) -> Turns:
        vitals = {node_id: replace(one, has_store=self.has_store) for node_id, one in self.vitals.items()}
        return turns_of(self.table.snapshot(), vitals, self.now_ms)

    def run_pass(self, node_id: int) -> Planned:
        """One pass of the service's leader over one retirement."""
        record, planned = self.record(node_id), self.planned(node_id)
        wait = None if planned.why is None else Wait(planned.why.reason, planned.why.words, self.now_ms)
        if planned.step is not record.step or (record.wait is None) is not (wait is None):
            self.do(AdvanceRetirement(node_id, record, planned.step, wait))
            return planned
        for action in planned.actions:
            match action:
                case Release():
                    self.do(ReleaseNode(node_id, record))
                case EndOpen(segments):
                    for key in segments:
                        with contextlib.suppress(Rejected):
                            self.do(GiveUpOpen(key))
                case _:
                    pass
        return planned

    def run_passes(self, *node_ids: int, count: int = 4) -> None:
        for _ in range(count):
            for node_id in node_ids:
                self.run_pass(node_id)

    def verifies(self, node_id: int) -> None:
        """It leaves, all that it held is in the object store, and others are to look whether that is so."""
        self.active(self.topic("orders", settings={"remote.storage.enable": "true"}))
        self.do(RetireNode(node_id))
        self.run_passes(node_id)
        self.roll_away(node_id)
        self.report_all()
        self.upload_all()
        self.run_passes(node_id)
        assert self.record(node_id).step is RetireStep.VERIFY

    def sight(
        self,
        node_id: int,
        by_node: int,
        unconfirmed: int = 0,
        *,
        is_differing: bool = False,
        segments: int = 10,
        seen_ms: int | None = None,
    ) -> None:
        """Reports a check by a node that has seen all earlier checks, or those up to `seen_ms`."""
        record = self.record(node_id)
        keys = tuple(segment.key for shard in self.table.snapshot().shards for segment in shard.segments)[:unconfirmed]
        self.do(
            ReportSighting(
                node_id,
                record.storage_id,
                record.begun_ms,
                segments,
                keys,
                unconfirmed,
                is_differing,
                "what was wrong",
                record.last_check_ms if seen_ms is None else seen_ms,
                caller=self.life(by_node),
            )
        )

    def write_inventory(self, node_id: int, by_node: int) -> None:
        record = self.record(node_id)
        self.do(ReportInventory(node_id, record.storage_id, record.begun_ms, "inventory", caller=self.life(by_node)))

    def leave(self, node_id: int, by_node: int) -> None:
        """Go on until it is done, as nodes that stay do their part; nothing may be in the way."""
        for _ in range(30):
            planned = self.run_pass(node_id)
            if planned.step is RetireStep.VERIFY:
                self.now_ms += INTERVAL_MS
                self.sight(node_id, by_node)
            elif planned.step is RetireStep.SNAPSHOT:
                self.write_inventory(node_id, by_node)
            elif self.record(node_id).step is RetireStep.DONE:
                return
        raise AssertionError(f"it does not end: {self.record(node_id)}")

    def roll_away(self, node_id: int) -> None:
        """Each leader rolls what the node has a replica of, and all that lives reports."""
        for shard in self.table.snapshot().shards:
            active = shard.segments[-1]
            if node_id in active.replicas and active.leader is not None and self.table.state.is_alive(active.leader):
                self.prepare(active.key)
                self.roll(active.key, active.base_offset + 10)

    def repair(self, away: frozenset[int] = frozenset()) -> None:
        """As the service's leader has copies made that are missing. `away`: nodes that others replace."""
        living = frozenset(node.node_id for node in self.table.snapshot().nodes if node.is_alive)
        steps = plan_moves(self.table.snapshot(), away, living, is_tiered)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                self.do(MoveReplicas(tuple(done.value.moves)))
                return

    def report_all(self, only: Collection[int] | None = None) -> None:
        """Every living replica of what has ended, or was copied, says what it has."""
        for shard in self.table.snapshot().shards:
            for segment in shard.segments:
                if segment.state is SegmentState.ACTIVE or segment.end_offset is None:
                    continue
                for replica in segment.replicas:
                    known = self.table.state.find_segment(segment.key)
                    if known is None or replica in known.local_nodes or known.state is SegmentState.DELETED:
                        continue
                    if self.table.state.is_alive(replica) and (only is None or replica in only):
                        if len(known.replicas) == 1 and known.seal is None:
                            self.seal_alone(known.key, replica)
                        else:
                            self.report(known.key, replica)

    def seal_alone(self, key: SegmentKey, replica: int) -> None:
        end_offset = self.segment(key).end_offset
        assert end_offset is not None
        self.do(SealSegment(key, record_of(key, end_offset, (replica,))))

    def upload_all(self) -> None:
        """Makes all sealed segments of topics with a remote tier COMPLETE."""
        lock = self.lock("tier/uploads", "uploader/1")
        for shard in self.table.snapshot().shards:
            if not is_tiered(self.table.topic(shard.key.topic_id)):
                continue
            for segment in shard.segments:
                alive = any(map(self.table.state.is_alive, segment.local_nodes))
                if segment.state is SegmentState.SEALED and segment.remote.state != "complete" and alive:
                    assert segment.end_offset is not None
                    if segment.end_offset > segment.base_offset:
                        self.commit(lock, segment.key, segment.base_offset, segment.end_offset)
                        self.complete(lock, segment.key)
