"""Looks at the whole world after what happens in it, and raises `Broken` when a promise is broken.

Knows what no node knows: which batch was given which offset, which are decided (below a high watermark that readers
were served with), what lies on which disk. A decided record is owed from then on. It is owed no more when it lies on no
disk of who should have it and not in the object store, and the topic does not promise more than that:
`flush.policy=replicated` on disks that all lost their power or were replaced.
Source: docs/replication.md section 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stratalog.machines.shard_table import ShardTable
from stratalog.model.commands import (
    Command,
    CommitParts,
    CompleteRemote,
    RegisterNode,
    ReplaceParts,
    SealSegment,
)
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog_sim.disk import Batch, Disk, digest_of
from stratalog_sim.store import Store, Stored, StoredManifest


class Broken(AssertionError):
    """A promise was broken; `promise` is its short name."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


@dataclass
class ShardTruth:
    """What is true of one shard."""

    is_fsync: bool
    given: dict[SegmentKey, dict[int, Batch]] = field(default_factory=dict)
    """By segment and base offset: what was written there, wherever."""
    decided: dict[int, Batch] = field(default_factory=dict)
    """By base offset: what is owed."""
    excused: dict[str, int] = field(default_factory=dict)
    """Values that are owed no more, and where they were."""
    losses: int = 0
    """How often something was excused."""
    lowest_loss: int = -1
    """Of the last one."""
    high_watermark: int = 0

    @property
    def end_offset(self) -> int:
        """Where what is owed ends."""
        return next(reversed(self.decided.values())).end_offset if self.decided else 0


@dataclass
class Judge:
    disks: dict[int, Disk]
    store: Store
    table: ShardTable
    shards: dict[ShardKey, ShardTruth] = field(default_factory=dict)
    in_doubt: dict[int, None] = field(default_factory=dict)
    """Nodes whose disk lost something since the meta service last heard of a new life of them."""
    checks: int = 0

    # Writing --------------------------------------------------------------------------------------------------------
    def written(self, node_id: int, key: SegmentKey, batches: list[Batch]) -> None:
        """An offset is given once in an epoch, so all replicas hold the same."""
        self.checks += 1
        given = self.shards[key.shard_key].given.setdefault(key, {})
        for batch in batches:
            before = given.setdefault(batch.base_offset, batch)
            if before != batch:
                raise Broken(
                    "an offset is given once", f"node {node_id} writes {batch} where {before} was, {key.epoch=}"
                )

    def moved_high_watermark(self, node_id: int, shard: ShardKey, epoch: int, high_watermark: int) -> None:
        """A leader serves readers below it from now on, and answers acks=all."""
        self.checks += 1
        truth = self.shards[shard]
        segment = self._segment_of(shard, epoch)
        if segment is None:
            if high_watermark > truth.high_watermark:
                raise Broken("nothing counts before its roll is confirmed", f"epoch {epoch} up to {high_watermark}")
            return
        key = segment.key
        if segment.state in (SegmentState.ACTIVE, SegmentState.SEALING):
            for member in segment.isr:
                if member in self.in_doubt and member != node_id:
                    continue
                end = self._end_on(member, key, is_flushed=truth.is_fsync)
                if end < high_watermark:
                    raise Broken(
                        "HW is within the committed ISR",
                        f"node {node_id} serves shard {shard.shard} up to {high_watermark}, node {member} of ISR "
                        f"{segment.isr} holds epoch {epoch} up to {end}",
                    )
        given = truth.given.get(key, {})
        offset = key.base_offset
        while offset < high_watermark:
            if offset not in given:
                raise Broken("HW is within the log", f"epoch {epoch} has nothing at {offset}, HW {high_watermark}")
            batch = given[offset]
            self._decide(truth, batch)
            offset = batch.end_offset
        if offset != high_watermark:
            raise Broken("HW lies at a batch's end", f"{high_watermark} is within a batch of epoch {epoch}")
        truth.high_watermark = max(truth.high_watermark, high_watermark)

    def _decide(self, truth: ShardTruth, batch: Batch) -> None:
        before = truth.decided.get(batch.base_offset)
        if before == batch:
            return
        if before is not None:
            raise Broken("no decided record changes", f"{before} of epoch {before.epoch} is {batch} of {batch.epoch}")
        truth.decided[batch.base_offset] = batch

    def shown(self, who: str, shard: ShardKey, batches: tuple[Batch, ...]) -> None:
        """A consumer got these."""
        self.checks += 1
        truth = self.shards[shard]
        for batch in batches:
            decided = truth.decided.get(batch.base_offset)
            if decided != batch and batch.value not in truth.excused and not batch.value.startswith("~"):
                raise Broken("readers see what is decided", f"{who} got {batch} of epoch {batch.epoch}, not {decided}")

    # Metadata -------------------------------------------------------------------------------------------------------
    def applied(self, command: Command[Any], result: Any) -> None:
        """The meta service did this."""
        self.checks += 1
        if isinstance(command, RegisterNode):
            self.in_doubt.pop(command.node.node_id, None)
        if isinstance(command, SealSegment):
            self._check_seal(result)
        elif isinstance(command, CommitParts | ReplaceParts):
            for outcome in result:
                if isinstance(outcome, Segment):
                    self._check_parts(outcome, command.lock.epoch if isinstance(command, CommitParts) else -1)
        elif isinstance(command, CompleteRemote):
            self._check_complete(result)
        elif isinstance(result, Segment):
            self._check_end(result)

    def _check_end(self, opened: Segment) -> None:
        """What ended before it holds all that was decided in it."""
        truth = self.shards.get(opened.key.shard_key)
        if truth is None:
            return
        for batch in truth.decided.values():
            if batch.epoch < opened.epoch and batch.end_offset > opened.base_offset:
                raise Broken(
                    "no decided record is lost", f"epoch {opened.epoch} opens at {opened.base_offset}: {batch}"
                )

    def _check_seal(self, sealed: Segment) -> None:
        seal, key = sealed.seal, sealed.key
        if seal is None:
            return
        truth = self.shards[key.shard_key]
        if seal.digest != digest_of(self._given(key, seal.end_offset)):
            raise Broken("seal records are true", f"epoch {key.epoch} [{seal.base_offset}, {seal.end_offset})")
        for batch in truth.decided.values():
            if batch.epoch == key.epoch and batch.end_offset > seal.end_offset:
                raise Broken("no decided record is lost", f"epoch {key.epoch} is sealed at {seal.end_offset}: {batch}")
        for node_id in sealed.local_nodes:
            disk = self.disks[node_id]
            file = disk.files.get(key)
            if node_id in self.in_doubt or seal.end_offset == seal.base_offset:
                continue
            held = digest_of(file.whole(key)) if file is not None else None
            if held != seal.digest:
                raise Broken("who is listed proved the digest", f"node {node_id} epoch {key.epoch}: {held!r}")
            if file is not None and file.flushed < len(file.cells):
                raise Broken("who is listed has it on its disk", f"node {node_id} epoch {key.epoch}")

    def _given(self, key: SegmentKey, end_offset: int) -> list[Batch]:
        given = self.shards[key.shard_key].given.get(key, {})
        found: list[Batch] = []
        offset = key.base_offset
        while offset < end_offset and offset in given:
            found.append(given[offset])
            offset = found[-1].end_offset
        return found

    def _check_parts(self, segment: Segment, lock_epoch: int) -> None:
        """Each part is there, and holds just these offsets as they were given; only what is decided goes up."""
        truth = self.shards[segment.key.shard_key]
        parts = segment.remote.parts
        for part in parts:
            found = self._stored(part.object_key, segment.key, part.base_offset)
            if found is None or found[-1].end_offset != part.end_offset:
                raise Broken("nothing referenced is missing", f"{part.object_key} lacks {part.base_offset}")
            for batch in found:
                if truth.decided.get(batch.base_offset) != batch and batch.value not in truth.excused:
                    raise Broken("only decided records go up", f"{part.object_key} has {batch} of epoch {batch.epoch}")
        if parts and lock_epoch >= 0 and f".{lock_epoch}." not in parts[-1].object_key:
            raise Broken(
                "one uploader per commit", f"{parts[-1].object_key} is committed under lock epoch {lock_epoch}"
            )

    def _check_complete(self, segment: Segment) -> None:
        key, seal = segment.key, segment.seal
        manifest = self.store.objects.get(segment.remote.manifest_key or "")
        if seal is None or not isinstance(manifest, StoredManifest):
            raise Broken("nothing referenced is missing", f"epoch {key.epoch}: no manifest")
        batches: list[Batch] = []
        for object_key in manifest.parts:
            batches += self._stored(object_key, key, -1) or []
        if digest_of(batches) != seal.digest:
            raise Broken("a complete copy is the sealed segment", f"epoch {key.epoch}: {manifest.parts}")

    def _stored(self, object_key: str, key: SegmentKey, base_offset: int) -> tuple[Batch, ...] | None:
        body: Stored | None = self.store.objects.get(object_key)
        if not isinstance(body, tuple):
            return None
        for part in body:
            if part.key == key and base_offset in (-1, part.batches[0].base_offset):
                return part.batches
        return None

    # Disks and objects ------------------------------------------------------------------------------------------------
    def freed(self, node_id: int, key: SegmentKey) -> None:
        """A node deleted its copy. The last one never goes."""
        self.checks += 1
        segment = self._segment_of(key.shard_key, key.epoch)
        if segment is None or segment.key != key or segment.base_offset == segment.end_offset:
            return  # deleted, or a roll that nobody knows
        if segment.remote.state is RemoteState.COMPLETE:
            self._check_complete(segment)
            return
        others = [other for other in segment.local_nodes if other != node_id]
        if segment.state is not SegmentState.SEALED or not any(key in self.disks[other].files for other in others):
            raise Broken("the last copy is never deleted", f"node {node_id} frees epoch {key.epoch}")

    def deleted_object(self, object_key: str) -> None:
        """Somebody deleted an object; called before it goes."""
        self.checks += 1
        for entry in self.table.state.shards.values():
            for segment in entry.segments.values():
                keys = [part.object_key for part in segment.remote.parts]
                manifest = self.store.objects.get(segment.remote.manifest_key or "")
                if isinstance(manifest, StoredManifest):
                    keys += [segment.remote.manifest_key or "", *manifest.parts]
                if object_key in keys:
                    raise Broken("nothing referenced is missing", f"{object_key} is deleted")

    def lost_power(self, node_id: int) -> None:
        """What its disk holds now was decided by the power cut, or it is a new one. Excuses what is nowhere."""
        self.in_doubt[node_id] = None
        for shard, truth in self.shards.items():
            for key in [key for key in truth.given if self._segment_of(shard, key.epoch) is None]:
                # Of a roll that was not confirmed nothing was shown: it may be written anew.
                files = [disk.files[key] for disk in self.disks.values() if key in disk.files]
                truth.given[key] = {batch.base_offset: batch for file in files for batch in file.whole(key)}
            for batch in list(truth.decided.values()):
                if self._is_held(shard, batch):
                    continue
                if truth.is_fsync and self.disks[node_id].files:
                    raise Broken("what was flushed survives a power cut", f"{batch} of epoch {batch.epoch}")
                self._excuse(truth, batch)

    def _excuse(self, truth: ShardTruth, batch: Batch) -> None:
        del truth.decided[batch.base_offset]
        truth.excused[batch.value] = batch.base_offset
        truth.losses += 1
        truth.lowest_loss = batch.base_offset
        truth.high_watermark = min(truth.high_watermark, batch.base_offset)

    def _is_held(self, shard: ShardKey, batch: Batch) -> bool:
        """Whether somebody has it who is asked for it."""
        segment = self._segment_of(shard, batch.epoch)
        if segment is None:
            return True  # deleted
        if segment.remote.commit_offset >= batch.end_offset:
            return True
        holders = segment.local_nodes if segment.state is SegmentState.SEALED else segment.isr
        return any(self._end_on(node_id, segment.key) >= batch.end_offset for node_id in holders)

    def _end_on(self, node_id: int, key: SegmentKey, *, is_flushed: bool = False) -> int:
        file = self.disks[node_id].files.get(key)
        if file is None:
            return key.base_offset
        whole = file.whole(key)
        if is_flushed:
            whole = whole[: file.flushed]
        return whole[-1].end_offset if whole else key.base_offset

    def _segment_of(self, shard: ShardKey, epoch: int) -> Segment | None:
        entry = self.table.state.shards.get(shard)
        return entry.segments.get(epoch) if entry is not None else None
