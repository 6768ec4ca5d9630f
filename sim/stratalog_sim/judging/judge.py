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

from stratalog.machines.table.shard_table import ShardTable
from stratalog.machines.tiering.upload_duty import uploader_of
from stratalog.model.commands.table_commands import (
    Command,
    CommitParts,
    CompleteRemote,
    MoveReplicas,
    RegisterNode,
    ReplaceParts,
)
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life
from stratalog.model.segment import GapReason, RemoteState, Segment, SegmentState
from stratalog_sim.broken import Broken
from stratalog_sim.environment.disk import Batch, Disk, digest_of
from stratalog_sim.environment.store import Store, Stored, StoredManifest
from stratalog_sim.judging.shard_truth import ShardTruth


@dataclass
class Judge:
    disks: dict[int, Disk]
    store: Store
    table: ShardTable = field(init=False)
    """The meta service's, of now."""
    shards: dict[ShardKey, ShardTruth] = field(default_factory=dict)
    in_doubt: dict[int, None] = field(default_factory=dict)
    """Nodes whose disk lost something since the meta service last heard of a new life of them."""
    checks: int = 0
    openers: dict[SegmentKey, int] = field(default_factory=dict)
    """Who led each segment that the meta service knows, or knew."""
    fewer: dict[SegmentKey, tuple[int, ...]] = field(default_factory=dict)
    """Without the replica that was added last, until its leader's ISR has that: it may count with these alone, of which
    each majority meets each of those of the record."""
    provisional: dict[SegmentKey, dict[int, dict[int, Batch]]] = field(default_factory=dict)
    """Of segments that the meta service does not know: by node and base offset."""

    # Replicas -------------------------------------------------------------------------------------------------------
    def follower_serves(self, node_id: int, key: SegmentKey, high_watermark: int) -> None:
        """Readers of a copy that does not lead see decided records alone, or what ended by a recovery."""
        self.checks += 1
        truth, segment = self.shards[key.shard_key], self.segment_of(key.shard_key, key.epoch)
        file = self.disks[node_id].files.get(key)
        if file is None or segment is None or segment.end_offset is not None:
            return
        for batch in file.whole(key):
            is_known = truth.decided.get(batch.base_offset) == batch or batch.value in truth.excused
            if batch.end_offset <= high_watermark and not is_known:
                raise Broken("readers see only decided records", f"node {node_id} shows {batch} of epoch {batch.epoch}")

    def promised(self, node_id: int, key: SegmentKey, fence: int) -> None:
        """A node tells its promise: it has it on its disk."""
        self.checks += 1
        if self.disks[node_id].fences.get(key, 0) < fence:
            raise Broken("a promise is on the disk before it is reported", f"node {node_id}, fence {fence} of {key}")

    # Writing --------------------------------------------------------------------------------------------------------
    def written(self, node_id: int, key: SegmentKey, batches: list[Batch], *, as_leader: bool) -> None:
        """An offset is given once in an epoch, so all replicas hold the same."""
        self.checks += 1
        if as_leader and self.openers.get(key, node_id) != node_id:
            return  # it does not know yet that another node leads the epoch: no client ever sees this batch
        segment = self.segment_of(key.shard_key, key.epoch)
        if segment is None or segment.key != key:
            # Of a roll that is not confirmed nothing counts, and another node may open that segment.
            provisional = self.provisional.setdefault(key, {}).setdefault(node_id, {})
            provisional.update({batch.base_offset: batch for batch in batches})
            return
        self._give(node_id, key, batches)

    def removed(self, node_id: int, key: SegmentKey) -> None:
        """Of a segment that the meta service does not know nothing is left there."""
        self.provisional.get(key, {}).pop(node_id, None)

    def _give(self, node_id: int, key: SegmentKey, batches: list[Batch]) -> None:
        given = self.shards[key.shard_key].given.setdefault(key, {})
        for batch in batches:
            # A batch that was given up may still turn up, beside its filler: copies may differ until a seal.
            for offset in [one for one in given if batch.base_offset <= one < batch.end_offset]:
                if batch.value.startswith("~") or given[offset].value.startswith("~"):
                    del given[offset]
            before = given.setdefault(batch.base_offset, batch)
            if before != batch:
                raise Broken(
                    "an offset is given once", f"node {node_id} writes {batch} where {before} was, {key.epoch=}"
                )

    def moved_high_watermark(self, node_id: int, key: SegmentKey, high_watermark: int) -> None:
        """A leader serves readers below it from now on, and answers acks=all."""
        self.checks += 1
        if high_watermark <= key.base_offset:
            return  # what it says lies before this segment
        shard, epoch = key.shard_key, key.epoch
        truth = self.shards[shard]
        segment = self.segment_of(shard, epoch)
        if segment is None or segment.key != key:
            raise Broken(
                "nothing is acknowledged before its roll is confirmed", f"epoch {epoch} up to {high_watermark}"
            )
        if segment.state in (SegmentState.ACTIVE, SegmentState.SEALING):
            self._check_holders(node_id, segment, truth, high_watermark)
        if segment.end_offset is not None and high_watermark > segment.end_offset:
            raise Broken("no decided record is lost", f"epoch {epoch} ended at {segment.end_offset}: {high_watermark}")
        given = truth.given.get(key, {})
        if segment.handed.given_up and key in self.disks[node_id].files:
            # Copies may differ in what was given up: readers see this one.
            given = {batch.base_offset: batch for batch in self.disks[node_id].files[key].whole(key)}
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

    def _check_holders(self, node_id: int, segment: Segment, truth: ShardTruth, high_watermark: int) -> None:
        """Check that the nodes that must hold the decided batches do: each member of the committed ISR, or most of the
        replicas. If a node is in doubt, its leader may not have heard yet that this node lost something."""
        voters, most_lacking = segment.isr, 0
        if truth.is_quorum:
            voters = segment.replicas
            most_lacking = (len(voters) - 1) // 2
        lacking = self._lacking(node_id, segment, truth, high_watermark, voters)
        fewer = self.fewer.get(segment.key) if truth.is_quorum else None
        if fewer is not None and len(lacking) > most_lacking:
            voters, most_lacking = fewer, (len(fewer) - 1) // 2
            lacking = self._lacking(node_id, segment, truth, high_watermark, voters)
        if len(lacking) > most_lacking:
            promise = "HW is within what most replicas hold" if truth.is_quorum else "HW is within the committed ISR"
            raise Broken(
                promise,
                f"node {node_id} serves shard {segment.key.shard} up to {high_watermark}; of {voters} these hold epoch "
                f"{segment.epoch} up to {lacking}",
            )

    def _lacking(
        self, node_id: int, segment: Segment, truth: ShardTruth, high_watermark: int, voters: tuple[int, ...]
    ) -> dict[int, int]:
        doubted = {one.node_id for one in segment.handed.doubts}
        lacking = {}
        for member in voters:
            if member != node_id and (member in self.in_doubt or (truth.is_quorum and member in doubted)):
                continue
            end = self.end_on(member, segment.key, is_flushed=truth.is_fsync)
            if end < high_watermark:
                lacking[member] = end
        return lacking

    def _decide(self, truth: ShardTruth, batch: Batch) -> None:
        before = truth.decided.get(batch.base_offset)
        if before == batch:
            return
        if before is not None:
            raise Broken("no decided record changes", f"{before} of epoch {before.epoch} is {batch} of {batch.epoch}")
        truth.decided[batch.base_offset] = batch
        truth.high_watermark = max(truth.high_watermark, batch.end_offset)

    def shown(self, who: str, shard: ShardKey, batches: tuple[Batch, ...]) -> None:
        """A consumer got these."""
        self.checks += 1
        truth = self.shards[shard]
        for batch in batches:
            decided = truth.decided.get(batch.base_offset)
            if decided != batch and batch.value not in truth.excused and not batch.value.startswith("~"):
                raise Broken(
                    "readers see only decided records", f"{who} got {batch} of epoch {batch.epoch}, not {decided}"
                )

    # Metadata -------------------------------------------------------------------------------------------------------
    def applied(self, command: Command[Any], result: Any, changed: list[Segment]) -> None:
        """The meta service did this, and these are so now."""
        self.checks += 1
        for segment in changed:
            if segment.leader is not None:
                self.openers.setdefault(segment.key, segment.leader)
        self._adopt()
        self._note_moves(command, changed)
        if isinstance(command, RegisterNode):
            self.in_doubt.pop(command.node.node_id, None)
        for segment in changed:
            self._check_ends(segment)
        if isinstance(command, CommitParts | ReplaceParts):
            for outcome in result:
                if isinstance(outcome, Segment):
                    self._check_uploader(outcome, command.caller)
                    self._check_parts(outcome, command.lock.epoch if isinstance(command, CommitParts) else -1)
        elif isinstance(command, CompleteRemote):
            self._check_uploader(result, command.caller)
            self.check_complete(result)

    def _note_moves(self, command: Command[Any], changed: list[Segment]) -> None:
        before = {move.segment: move.replicas for move in command.moves} if isinstance(command, MoveReplicas) else {}
        for segment in changed:
            if {*segment.replicas} == {*segment.isr}:
                self.fewer.pop(segment.key, None)
            elif segment.key in before:
                self.fewer[segment.key] = before[segment.key]

    def _adopt(self) -> None:
        """What its leader wrote before the meta service knew of a segment."""
        for key in list(self.provisional):
            segment = self.segment_of(key.shard_key, key.epoch)
            if segment is not None:
                by_node = self.provisional.pop(key)
                if segment.key == key and segment.leader is not None and segment.leader in by_node:
                    self._give(segment.leader, key, list(by_node[segment.leader].values()))

    def _check_ends(self, touched: Segment) -> None:
        """What ended holds all that was decided in it; and what is sealed is true."""
        truth, end = self.shards.get(touched.key.shard_key), touched.end_offset
        if truth is None or end is None:
            return
        given = list(truth.given.get(touched.key, {}).values())
        left = given_up_by_leave(touched)
        for batch in given:
            is_decided = truth.decided.get(batch.base_offset) == batch
            if left and is_decided and batch.end_offset > min(left):
                self._excuse(truth, batch)
            elif is_decided and batch.end_offset > end:
                raise Broken("no decided record is lost", f"epoch {touched.epoch} ends at {end}: {batch}")
        is_new = touched.key not in truth.ended and (touched.seal is not None or not touched.fence)
        is_other = touched.seal is not None and bool(touched.handed.given_up) and touched.key not in truth.adopted
        if is_new or is_other:
            # What a recovery found below the end that it named counts once that is sealed.
            truth.ended[touched.key] = None
            if is_other:
                truth.adopted[touched.key] = None
                self._adopt_sealed(truth, touched)
            for batch in self._given(touched.key, end):
                self._decide(truth, batch)
        if touched.seal is not None:
            self._check_seal(touched)

    def _adopt_sealed(self, truth: ShardTruth, sealed: Segment) -> None:
        """Where a batch was given up, the copies differed: some still had it, some had a batch without records in its
        place. The seal says which of the two counts."""
        for node_id in sealed.local_nodes:
            file = self.disks[node_id].files.get(sealed.key)
            whole = file.whole(sealed.key) if file is not None else []
            if sealed.seal is not None and digest_of(whole) == sealed.seal.digest:
                truth.given[sealed.key] = {batch.base_offset: batch for batch in whole}

    def _check_seal(self, sealed: Segment) -> None:
        seal, key = sealed.seal, sealed.key
        if seal is None:
            return
        self.shards[key.shard_key]
        is_whole = not sealed.handed.given_up
        if is_whole and seal.digest != digest_of(self._given(key, seal.end_offset)):
            raise Broken("seal records are true", f"epoch {key.epoch} [{seal.base_offset}, {seal.end_offset})")
        for node_id in sealed.local_nodes:
            disk = self.disks[node_id]
            file = disk.files.get(key)
            if node_id in self.in_doubt or seal.end_offset == seal.base_offset:
                continue
            if file is None and (sealed.remote.state is RemoteState.COMPLETE or disk.storage > 1):
                # A late report may list a node that freed its copy; a node with a new disk reports its losses later.
                continue
            held = digest_of(file.whole(key)) if file is not None else None
            if held != seal.digest:
                raise Broken("each listed replica proved the digest", f"node {node_id} epoch {key.epoch}: {held!r}")
            if file is not None and file.flushed < len(file.cells):
                raise Broken("each listed replica has the segment on its disk", f"node {node_id} epoch {key.epoch}")

    def _given(self, key: SegmentKey, end_offset: int) -> list[Batch]:
        given = self.shards[key.shard_key].given.get(key, {})
        found: list[Batch] = []
        offset = key.base_offset
        while offset < end_offset and offset in given:
            found.append(given[offset])
            offset = found[-1].end_offset
        return found

    def _check_uploader(self, segment: Segment, caller: Life | None) -> None:
        """The record of the segment and the set of living nodes determine the one node that may upload."""
        named = uploader_of(segment, self.table.state.is_alive, self.table.state.mount_of)
        if caller is not None and caller.node_id != named:
            raise Broken("one uploader per commit", f"node {caller.node_id} commits {segment.key}, not node {named}")

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
                    raise Broken(
                        "only decided records are uploaded", f"{part.object_key} has {batch} of epoch {batch.epoch}"
                    )
        if parts and lock_epoch >= 0 and f".{lock_epoch}." not in parts[-1].object_key:
            raise Broken(
                "one uploader per commit", f"{parts[-1].object_key} is committed under lock epoch {lock_epoch}"
            )

    def check_complete(self, segment: Segment) -> None:
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
    def freed(self, node_id: int, key: SegmentKey, *, is_replica: bool = True) -> None:
        """A node deletes its copy. The last one never goes. `is_replica` False: the record names it no more."""
        self.checks += 1
        segment = self.segment_of(key.shard_key, key.epoch)
        if not is_replica and (segment is None or segment.seal is None):
            return
        if segment is None or segment.key != key or segment.base_offset == segment.end_offset:
            return  # deleted, or a roll that the meta service does not know
        if segment.remote.state is RemoteState.COMPLETE:
            self.check_complete(segment)
            return
        others = [other for other in segment.local_nodes if other != node_id]
        if segment.state is not SegmentState.SEALED or not any(key in self.disks[other].files for other in others):
            raise Broken("the last copy is never deleted", f"node {node_id} frees epoch {key.epoch}")

    def deleted_object(self, object_key: str) -> None:
        """Check that the metadata no longer need an object; called before the object is deleted."""
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
            for key, by_node in self.provisional.items():
                # Of a roll that was not confirmed nothing was shown: it may be written again.
                if node_id in by_node and key.shard_key == shard:
                    file = self.disks[node_id].files.get(key)
                    by_node[node_id] = {one.base_offset: one for one in file.whole(key)} if file is not None else {}
            for batch in list(truth.decided.values()):
                if self._is_held(shard, batch):
                    continue
                if truth.is_fsync and self.disks[node_id].files:
                    raise Broken("flushed data survives a power cut", f"{batch} of epoch {batch.epoch}")
                self._excuse(truth, batch)

    def leads(self, node: str, shard: ShardKey) -> bool:
        """Whether the meta service says so now. One that was replaced, and does not know, may take what was sent to its
        successor for missing."""
        entry = self.table.state.shards.get(shard)
        return entry is not None and node == f"node-{entry.last.leader}"

    def lost_up_to(self, shard: ShardKey, offset: int) -> int:
        """Where the sealed segment with this offset ends, if it was lost with its last disk; else the offset. No client
        is owed a lost segment, and no answer leads readers past it: a node refuses to read it."""
        entry, decided = self.table.state.shards[shard], self.shards[shard].decided
        for segment in entry.segments.values():
            if segment.seal is not None and segment.base_offset <= offset < segment.seal.end_offset:
                is_stored = segment.remote.state is RemoteState.COMPLETE
                is_lost = not is_stored and all(self.disks[one].storage > 1 for one in segment.local_nodes)
                owed = any(offset <= one.base_offset < segment.seal.end_offset for one in decided.values())
                return segment.seal.end_offset if is_lost and not owed else offset
        return offset

    def _excuse(self, truth: ShardTruth, batch: Batch) -> None:
        del truth.decided[batch.base_offset]
        truth.excused[batch.value] = batch.base_offset
        truth.losses += 1
        truth.lowest_loss = batch.base_offset
        truth.high_watermark = min(truth.high_watermark, batch.base_offset)

    def _is_held(self, shard: ShardKey, batch: Batch) -> bool:
        """Whether a node that clients may ask has the batch."""
        segment = self.segment_of(shard, batch.epoch)
        if segment is None:
            return True  # deleted
        if segment.remote.commit_offset >= batch.end_offset:
            return True
        holders = segment.replicas if self.shards[shard].is_quorum else segment.isr
        if segment.state is SegmentState.SEALED:
            holders = segment.local_nodes
        elif segment.fence:
            holders = segment.replicas  # whoever answers is heard
        return any(self.end_on(node_id, segment.key) >= batch.end_offset for node_id in holders)

    def end_on(self, node_id: int, key: SegmentKey, *, is_flushed: bool = False) -> int:
        file = self.disks[node_id].files.get(key)
        if file is None:
            return key.base_offset
        whole = file.whole(key)
        if is_flushed:
            whole = whole[: file.flushed]
        return whole[-1].end_offset if whole else key.base_offset

    def segment_of(self, shard: ShardKey, epoch: int) -> Segment | None:
        entry = self.table.state.shards.get(shard)
        return entry.segments.get(epoch) if entry is not None else None


def given_up_by_leave(segment: Segment) -> list[int]:
    """From which offsets on the topic's policy let records be given up."""
    return [one.base_offset for one in segment.handed.given_up if one.reason is GapReason.UNCLEAN]
