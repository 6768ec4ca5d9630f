"""What must hold where nodes join and leave: which nodes were released and how, which node holds each data set under
which token, and what is mounted.

It sees each durable change of the metadata, what is on each disk, and the result of each check that a node makes.
Source: docs/scaling-spec.md section 1.
"""

from __future__ import annotations

import sys
from typing import Final

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet, Life, MountChanged, Node, NodeChanged, SegmentChanged
from stratalog.model.mounts import Mount, MountedTopic
from stratalog.model.retirement import Retirement, RetireMode
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog_sim.product.truth import Truth
from stratalog_sim.product.world import VERIFY_MS

RELEASED: Final = "a released node never comes back"
TWO_CHECKS: Final = "a node is released after two checks, apart in time"
READABLE: Final = "the last readable copy is never given up"
ONE_HOLDER: Final = "one holder of a data set"
LIVING_HOLDER: Final = "the holder of a data set is alive"
ONLY_SEALED: Final = "a mount serves only sealed data"
_NO_END: Final = sys.maxsize


class LeavingTruth:
    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.released: dict[int, RetireMode] = {}
        self.dead: dict[int, None] = {}
        """Nodes that never come back. Until one is given up its disk counts: a person may yet bring it."""
        self.lost: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """By place: sealed ranges that were given up, which no node can read."""
        self._filled: dict[tuple[str, int], list[tuple[int, int]]] = {}
        """By place: ranges that were given up before their segments were sealed. Batches without records take their
        place."""
        self._looks: dict[int, list[float]] = {}
        """By leaving node: when a check found all of its data elsewhere, in ms."""
        self._records: dict[int, Retirement | None] = {}
        self._holders: dict[tuple[str, int], Life] = {}
        """By name of a mount and token: whose that is."""
        self._tokens: dict[str, int] = {}
        """The highest that was given for each data set."""
        self.mounted: dict[str, tuple[MountedTopic, ...]] = {}
        self._known: dict[SegmentKey, None] = {}
        """Segments of earlier changes."""
        self._gaps: dict[SegmentKey, None] = {}
        """Segments whose gaps were excused."""

    # What nodes and readers do --------------------------------------------------------------------------------------
    def looked(self, node: Node, now_ms: float, *, is_clean: bool) -> None:
        self.truth.checks += 1
        if is_clean:
            self._looks.setdefault(node.node_id, []).append(now_ms)

    def served(self, node_id: int, shard: ShardKey, segment: Segment) -> None:
        if node_id in self.released and segment.seal is None:
            self.truth.fail("a released node takes no write", f"node {node_id} serves {segment.key} of {shard}")

    def mount_shown(self, who: str, mount: str, place: tuple[str, int], offset: int, value: bytes) -> None:
        """A reader of a mount gets only the range of the mount, and the same data as readers of the topic."""
        topic = next(one for one in self.mounted[mount] if one.name == place[0])
        base, end = topic.ranges[place[1]]
        if not base <= offset < end:
            self.truth.fail(ONLY_SEALED, f"{who} shows {offset} of {place}, outside of [{base}, {end})")
        self.truth.decide(who, place, offset, value)

    # What the metadata say ------------------------------------------------------------------------------------------
    def published(self, table: ShardTable, change_set: ChangeSet) -> None:
        segments = {one.segment.key: one.segment for one in change_set.changes if isinstance(one, SegmentChanged)}
        for change in change_set.changes:
            match change:
                case NodeChanged(node):
                    self._check_node(table, node, segments)
                case MountChanged(mount):
                    self._check_mount(table, mount)
                case SegmentChanged(segment):
                    self._check_segment(table, segment)
                case _:
                    pass
        self._known.update(dict.fromkeys(segments))
        self._check_holders(table)

    def _check_node(self, table: ShardTable, node: Node, changed: dict[SegmentKey, Segment]) -> None:
        node_id, record = node.node_id, node.retirement
        before = self._records.get(node_id)
        self._records[node_id] = record
        if node_id in self.released:
            if record is None or not record.step.is_released:
                self.truth.fail(RELEASED, f"the retirement of node {node_id} is taken back")
            if node.is_alive:
                self.truth.fail(RELEASED, f"node {node_id} is registered")
        elif record is None or before is None or before.begun_ms != record.begun_ms:
            self._looks[node_id] = []
        if record is None or not record.step.is_released or node_id in self.released:
            return
        self.released[node_id] = record.mode
        if record.is_forced and node_id in self.dead:
            self._given_up(table, record)
        elif record.is_forced:
            self.truth.fail("only a dead node is given up by force", f"node {node_id}")
        else:
            self._check_release(table, node_id, record, changed)

    def _check_release(
        self, table: ShardTable, node_id: int, record: Retirement, changed: dict[SegmentKey, Segment]
    ) -> None:
        """It was seen twice that nothing needs the node, and nothing does."""
        self.truth.checks += 1
        of_all = [one for shard in table.state.shards.values() for one in shard.segments.values()]
        own = {one.key: one for one in of_all if node_id in one.replicas or node_id in one.local_nodes}
        for segment in (own | changed).values():
            if segment.state in (SegmentState.ACTIVE, SegmentState.SEALING):
                if node_id in segment.replicas:
                    self.truth.fail(READABLE, f"node {node_id} is released, {segment.key} is not sealed")
            elif segment.state is SegmentState.SEALED and not self._is_readable(segment, node_id, record.mode):
                self.truth.fail(READABLE, f"node {node_id} is released and had it: {segment.key}")
        looks = self._looks.get(node_id, [])
        if not looks or looks[-1] - looks[0] < VERIFY_MS:
            self.truth.fail(TWO_CHECKS, f"node {node_id}: {looks}")
        if any(one.unconfirmed_count for one in record.sightings):
            what = f"node {node_id}: {record.sightings}"
            self.truth.fail("a segment with unknown copies blocks the release", what)

    def _is_readable(self, segment: Segment, leaving: int, mode: RetireMode) -> bool:
        """Without the node: from the store, from another that exists, or from a directory that stays."""
        if segment.end_offset == segment.base_offset or segment.remote.state is RemoteState.COMPLETE:
            return True
        gone = {one for one, how in self.released.items() if how is RetireMode.OFFLOAD} | self.dead.keys()
        if mode is RetireMode.OFFLOAD:
            gone.add(leaving)
        return any(one not in gone and self.truth.holds(one, segment) for one in segment.local_nodes)

    def _check_segment(self, table: ShardTable, segment: Segment) -> None:
        if segment.state is SegmentState.ACTIVE and not self.released.keys().isdisjoint(segment.replicas):
            self.truth.fail(RELEASED, f"{segment.key} is placed on {segment.replicas}")
        if segment.handed.given_up and segment.key not in self._gaps:
            self._gaps[segment.key] = None
            shard = table.shard(segment.key.shard_key)
            behind = [one for one in shard.segments if one.epoch > segment.epoch and one.key in self._known]
            place = _place(table, segment.key)
            for gap in segment.handed.given_up:
                self._filled.setdefault(place, []).append((gap.base_offset, gap.end_offset))
                end = behind[0].base_offset if behind else _NO_END  # the dead node may have served more than is known
                self.truth.lose(place, segment, gap.base_offset, max(end, gap.end_offset))

    # Data sets and mounts -------------------------------------------------------------------------------------------
    def _check_mount(self, table: ShardTable, mount: Mount) -> None:
        self.truth.checks += 1
        if mount.topics:
            if mount.name not in self.mounted:
                self.mounted[mount.name] = mount.topics
                self._check_ranges(table, mount)
            elif self.mounted[mount.name] != mount.topics:
                self.truth.fail("a mount shows the same each time", f"{mount}, before {self.mounted[mount.name]}")
            return
        highest = self._tokens[mount.name] = max(mount.token, self._tokens.get(mount.name, 0))
        if mount.token < highest:
            self.truth.fail(ONE_HOLDER, f"the token of {mount.name} goes back from {highest} to {mount.token}")
        if mount.holder is not None:
            life = Life(mount.holder, mount.holder_epoch)
            before = self._holders.setdefault((mount.name, mount.token), life)
            if before != life:
                what = f"{mount.name} is {life}'s under token {mount.token}, which is {before}'s"
                self.truth.fail(ONE_HOLDER, what)

    def _check_holders(self, table: ShardTable) -> None:
        """A holder that dies, or begins another life, is replaced with the change that tells of it."""
        for mount in table.state.mounts.values():
            entry = None if mount.holder is None else table.state.nodes[mount.holder]
            if entry is not None and not (entry.is_alive and entry.node_epoch == mount.holder_epoch):
                what = f"{mount.name} is {mount.holder}'s in life {mount.holder_epoch}, which is over: {entry.life}"
                self.truth.fail(LIVING_HOLDER, what)

    def _check_ranges(self, table: ShardTable, mount: Mount) -> None:
        for topic in mount.topics:
            for number, wanted in enumerate(topic.ranges):
                shard = table.shard(ShardKey(topic.topic_id, number))
                sealed = [one for one in shard.segments if one.state is SegmentState.SEALED]
                end = max((one.end_offset or 0 for one in sealed), default=shard.log_start_offset)
                if wanted.end_offset > max(end, shard.log_start_offset):
                    what = f"{mount.name} goes up to {wanted.end_offset} of shard {number}, sealed is {end}"
                    self.truth.fail(ONLY_SEALED, what)

    # What is given up -----------------------------------------------------------------------------------------------
    def _given_up(self, table: ShardTable, record: Retirement) -> None:
        """What the record names is owed no more. Nothing else was lost with the node."""
        for one in record.given_up:
            segment = table.state.find_segment(one.segment)
            if one.segment in self._gaps:
                continue
            if segment is None:
                continue
            if segment.remote.state is RemoteState.COMPLETE:
                self.truth.fail("only data without a copy is given up", f"{one} is in the store")
            place = _place(table, one.segment)
            self.truth.lose(place, segment, one.base_offset, one.end_offset)
            self.lost.setdefault(place, []).append((one.base_offset, one.end_offset))

    def past_lost(self, place: tuple[str, int], offset: int) -> int:
        """Where a reader continues that cannot read what was given up."""
        return next((end for base, end in self.lost.get(place, []) if base <= offset < end), offset)

    def may_skip(self, place: tuple[str, int], base_offset: int, end_offset: int) -> bool:
        """Whether no offset of this range has a record any more."""
        given_up = sorted([*self._filled.get(place, []), *self.lost.get(place, [])])
        for base, end in given_up:
            if base <= base_offset:
                base_offset = max(base_offset, end)
        return base_offset >= end_offset


def _place(table: ShardTable, key: SegmentKey) -> tuple[str, int]:
    return table.topic(key.topic_id).name, key.shard
