"""What the judge knows of nodes that join and leave: which nodes were released and how, which node holds each data set
under which token, and what is mounted manually. Source: docs/scaling-spec.md section 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.commands.retirement_commands import CancelRetirement, ReleaseNode, RetireNode
from stratalog.model.commands.table_commands import CommitParts, CompleteRemote, RegisterNode, ReplaceParts
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life, Lock
from stratalog.model.mounts import Mount, MountedTopic
from stratalog.model.retirement import LostRange, RetireMode
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog_sim.broken import Broken
from stratalog_sim.environment.disk import Batch, Disk, digest_of
from stratalog_sim.judging.shard_truth import ShardTruth
from stratalog_sim.service.retiring import VERIFY_MS
from stratalog_sim.why_waits import why_waits

RELEASED = "a released node never comes back"


class TruthOfAll(Protocol):
    """What is used of the judge."""

    checks: int
    disks: dict[int, Disk]
    table: ShardTable
    shards: dict[ShardKey, ShardTruth]

    def segment_of(self, shard: ShardKey, epoch: int) -> Segment | None: ...

    def check_complete(self, segment: Segment) -> None: ...

    def excuse_given_up(self, lost: Iterable[LostRange]) -> None: ...


@dataclass
class Departures:
    judge: TruthOfAll
    released: dict[int, RetireMode] = field(default_factory=dict)
    looks: dict[int, list[int]] = field(default_factory=dict)
    """By leaving node: when a check found all of its data elsewhere."""
    holders: dict[tuple[str, int], Life] = field(default_factory=dict)
    """By name of a mount and token: whose that is."""
    tokens: dict[str, int] = field(default_factory=dict)
    """The highest that was given for each data set."""
    mounted: dict[str, tuple[MountedTopic, ...]] = field(default_factory=dict)
    dead: dict[int, bool] = field(default_factory=dict)
    """Nodes that never come back, and whether they were given up. Until then their disks count: a person may yet bring
    them."""

    # What nodes do ---------------------------------------------------------------------------------------------------
    def looked(self, node_id: int, now_ms: int, *, is_clean: bool) -> None:
        self.judge.checks += 1
        if is_clean:
            self.looks.setdefault(node_id, []).append(now_ms)

    def moved_high_watermark(self, node_id: int, segment: Segment) -> None:
        if node_id in self.released and segment.seal is None:
            raise Broken("a released node takes no write", f"node {node_id}, {segment.key}")

    def volume_serves(self, node_id: int, key: SegmentKey, batches: list[Batch]) -> None:
        """From a retired node's directory: sealed data alone."""
        self.judge.checks += 1
        self._check_sealed(f"the directory of node {node_id}", key, batches)

    def mount_serves(self, who: str, mount: str, shard: ShardKey, batches: tuple[Batch, ...]) -> None:
        """A reader of a manual mount gets only the range of the mount, and only sealed data."""
        self.judge.checks += 1
        topic = next(one for one in self.mounted[mount] if one.topic_id == shard.topic_id)
        base, end = topic.ranges[shard.shard]
        for batch in batches:
            segment = self.judge.segment_of(shard, batch.epoch)
            if not base <= batch.base_offset < batch.end_offset <= end:
                raise Broken("a mount serves only sealed data", f"{who} shows {batch}, outside of [{base}, {end})")
            if segment is not None:
                self._check_sealed(who, segment.key, [batch])

    def _check_sealed(self, who: str, key: SegmentKey, batches: list[Batch]) -> None:
        segment, truth = self.judge.segment_of(key.shard_key, key.epoch), self.judge.shards[key.shard_key]
        for batch in batches:
            is_known = truth.decided.get(batch.base_offset) == batch or batch.value in truth.excused
            is_sealed = segment is None or (segment.seal is not None and batch.end_offset <= segment.seal.end_offset)
            if not is_sealed or not (is_known or batch.value.startswith("~")):
                raise Broken("a mount serves only sealed data", f"{who} shows {batch} of epoch {key.epoch}")

    # What the meta service does --------------------------------------------------------------------------------------
    def applied(self, command: Any, result: Any, changed: list[Segment]) -> None:
        match command:
            case RetireNode(node_id=node_id):
                if node_id not in self.released:
                    self.looks.setdefault(node_id, [])
            case CancelRetirement(node_id=node_id):
                if node_id in self.released:
                    raise Broken(RELEASED, f"the retirement of node {node_id} is taken back")
                self.looks.pop(node_id, None)
            case RegisterNode(node):
                if node.node_id in self.released:
                    raise Broken(RELEASED, f"node {node.node_id} is registered")
            case ReleaseNode(node_id=node_id, seen=seen) if result:
                if seen.is_forced:
                    self._give_up(node_id)
                else:
                    self._check_release(node_id, seen.mode, changed)
                self.released[node_id] = seen.mode
            case CommitParts(lock=lock) | ReplaceParts(lock=lock) | CompleteRemote(lock=lock):
                self._check_writer(lock)
            case _:
                pass
        for segment in changed:
            if segment.state is SegmentState.ACTIVE and self.released.keys() & {*segment.replicas}:
                raise Broken(RELEASED, f"{segment.key} is placed on {segment.replicas}")
        for mount in self.judge.table.state.mounts.values():
            self._check_mount(mount)

    def _check_writer(self, lock: Lock) -> None:
        """Nothing is committed for a data set under a token that is another's by now."""
        if lock.epoch < self.tokens.get(lock.name, 0):
            raise Broken("one holder of a data set", f"{lock.holder} commits under {lock.epoch} of {lock.name}")

    def _check_mount(self, mount: Mount) -> None:
        if mount.topics:
            before = self.mounted.get(mount.name)
            if before is None:
                self.mounted[mount.name] = mount.topics
                self._check_ranges(mount)
            return
        self.tokens[mount.name] = max(mount.token, self.tokens.get(mount.name, 0))
        if mount.token < self.tokens[mount.name]:
            raise Broken("one holder of a data set", f"the token of {mount.name} goes back to {mount.token}")
        if mount.holder is not None:
            life = Life(mount.holder, mount.holder_epoch)
            before_life = self.holders.setdefault((mount.name, mount.token), life)
            if before_life != life:
                words = f"{mount.name} is {life}'s under token {mount.token}, which is {before_life}'s"
                raise Broken("one holder of a data set", words)

    def _check_ranges(self, mount: Mount) -> None:
        for topic in mount.topics:
            for shard, entry in self.judge.table.state.shards.items():
                if shard.topic_id != topic.topic_id:
                    continue
                sealed = [one for one in entry.segments.values() if one.state is SegmentState.SEALED]
                end = max((one.end_offset or 0 for one in sealed), default=entry.log_start_offset)
                if topic.ranges[shard.shard].end_offset > max(end, entry.log_start_offset):
                    words = f"{mount.name} goes up to {topic.ranges[shard.shard].end_offset}, sealed is {end}"
                    raise Broken("a mount serves only sealed data", f"shard {shard.shard}: {words}")

    def _check_release(self, node_id: int, mode: RetireMode, changed: list[Segment]) -> None:
        """Just done: it was seen twice that nothing needs the node, and nothing does."""
        of_all = (entry.segments.values() for entry in self.judge.table.state.shards.values())
        own = [one for some in of_all for one in some if node_id in one.replicas or node_id in one.local_nodes]
        for segment in {one.key: one for one in (*own, *changed)}.values():
            if segment.state in (SegmentState.ACTIVE, SegmentState.SEALING):
                if node_id in segment.replicas:
                    raise Broken("the last readable copy is never given up", f"{segment.key} is not sealed")
            elif segment.state is SegmentState.SEALED and not self._is_readable(segment, node_id, mode):
                raise Broken("the last readable copy is never given up", f"node {node_id} had it: {segment.key}")
        record = self.judge.table.state.nodes[node_id].node.retirement
        looks = self.looks.get(node_id, [])
        if not looks or looks[-1] - looks[0] < VERIFY_MS:
            raise Broken("a node is released after two checks, apart in time", f"node {node_id}: {looks}")
        if record is not None and any(one.unconfirmed_count for one in record.sightings):
            raise Broken("a segment with unknown copies blocks the release", f"node {node_id}: {record.sightings}")

    def _give_up(self, node_id: int) -> None:
        """The node was just released by force: what its record names as given up is owed no more, if no other node has
        it. Nothing else was lost with the node."""
        judge, record = self.judge, self.judge.table.state.nodes[node_id].node.retirement
        if node_id not in self.dead or record is None:
            raise Broken("only a dead node is given up by force", f"node {node_id}")
        self.dead[node_id] = True
        judge.disks[node_id].wipe()
        lost = []
        for one in record.given_up:
            segment = judge.segment_of(one.segment.shard_key, one.segment.epoch)
            if segment is not None and _is_gap_of(segment, one):
                continue  # it was given up while the segment was open, and the judge excused it at that moment
            if segment is not None and segment.remote.state is RemoteState.COMPLETE:
                raise Broken("only data without a copy is given up", f"{one} is in the store")
            lost.append(one)
        judge.excuse_given_up(lost)

    def _is_readable(self, segment: Segment, node_id: int, mode: RetireMode) -> bool:
        """Without the node: from the store, from another that lives, or from the directory that stays."""
        if segment.end_offset == segment.base_offset:
            return True
        if segment.remote.state is RemoteState.COMPLETE:
            self.judge.check_complete(segment)
            return True
        volumes = {one for one, how in self.released.items() if how is RetireMode.VOLUME}
        if mode is RetireMode.VOLUME:
            volumes.add(node_id)
        return any(self._has_whole(one, segment, one in volumes, node_id) for one in segment.local_nodes)

    def _has_whole(self, holder: int, segment: Segment, is_volume: bool, leaving: int) -> bool:
        if not is_volume and (holder == leaving or not self.judge.table.state.is_alive(holder)):
            return False
        file, seal = self.judge.disks[holder].files.get(segment.key), segment.seal
        return file is not None and seal is not None and digest_of(file.whole(segment.key)) == seal.digest

    # The end --------------------------------------------------------------------------------------------------------
    def why_waits(self, node_id: int, volumes: set[int]) -> str:
        """Of a retirement that is not done, though all is well: what is wrong with that, or nothing. `volumes`: whose
        directories are read."""
        return why_waits(self.judge.table.state, node_id, volumes)


def _is_gap_of(segment: Segment, lost: LostRange) -> bool:
    """Whether the segment's own record says that this range was given up when the segment was ended."""
    return any(
        (gap.base_offset, gap.end_offset) == (lost.base_offset, lost.end_offset) for gap in segment.handed.given_up
    )
