"""What must hold, seen from outside: the answers that clients got, what is on each disk, what the metadata say.

It knows the disks and the metadata of the whole world, and of a node no more than how far each of its shards serves.
The first broken promise is kept, and ends the world.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.journal import JOURNAL_HEADER_BYTES, decode_journal_header, scan_journal
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest_past
from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.machines.table.shard_table import ShardTable
from stratalog.machines.tiering.upload_duty import uploader_of
from stratalog.model.commands.table_commands import Command, CommitParts, PromiseFence, RollSegment
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet
from stratalog.model.segment import RemotePart, RemoteState, Segment, SegmentState
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.node import StorageNode
from stratalog_sim.broken import Broken
from stratalog_sim.product.bucket import Bucket
from stratalog_sim.product.clients import Consumer, Producer
from stratalog_sim.product.copy_ends import CopyEnds, end_of
from stratalog_sim.product.files import Inode
from stratalog_sim.product.kernel import ROOT
from stratalog_sim.product.losses import Losses, segments_of
from stratalog_sim.product.machine import Machine

Values = dict[tuple[str, int], dict[int, bytes]]
"""By topic and shard, then by offset."""
LAYOUT = NodeLayout(Path(ROOT) / "data")
_SEGMENTS = str(LAYOUT.segments)
_INVARIANTS_EVERY = 32
"""Changes of the metadata."""


class Truth:
    def __init__(
        self,
        machines: dict[int, Machine],
        bucket: Bucket,
        table: Callable[[], ShardTable | None],
        now_s: Callable[[], float],
        *,
        is_fsync: bool,
    ) -> None:
        self.machines = machines
        self.bucket = bucket
        self.table = table
        self.is_fsync = is_fsync
        self.broken: Broken | None = None
        self.checks = 0
        self.decided: Values = {}
        """What clients were shown or had acknowledged."""
        self.on_broken: Callable[[], None] = lambda: None
        self._served: dict[tuple[int, ShardKey], int] = {}
        self._proven: dict[tuple[SegmentKey, int], None] = {}
        """Copies whose content was compared with the seal."""
        self._given: dict[SegmentKey, dict[int, tuple[int, int]]] = {}
        """By base offset of each batch: where it ends, and its checksum."""
        self._keys: dict[Inode, SegmentKey] = {}
        self._committed: dict[tuple[SegmentKey, RemotePart], None] = {}
        self._paths: dict[SegmentKey, str] = {}
        self._ends = CopyEnds()
        self._served_in: dict[SegmentKey, int] = {}
        """How far leaders have served each segment."""
        self._replicas: dict[SegmentKey, tuple[int, ...]] = {}
        self._fewer: dict[SegmentKey, tuple[int, ...]] = {}
        """Without the replica that was added last, until its leader's ISR has that: it may count with these alone, of
        which each majority meets each of those of the record."""
        self._served_unseen: dict[ShardKey, int] = {}
        """The same while no meta service ran, whose table names the segment."""
        self.in_doubt: dict[int, None] = {}
        """Nodes that may be without what they had, and have not begun another life since."""
        self.losses = Losses(now_s, self._end_with_journals)
        self.damaged: dict[tuple[int, SegmentKey], int] = {}
        """Copies that lost something by no fault of their nodes, and where they ended."""
        self.after_publish: list[Callable[[ShardTable, ChangeSet], None]] = []
        self._now_s = now_s
        self._loaded_s = 0.0
        self._published = 0
        self.on_group_log_lost: Callable[[], None] = lambda: None
        self.on_served: Callable[[int, ShardKey, Segment], None] = lambda *_: None

    def fail(self, promise: str, what: str) -> None:
        if self.broken is None:
            self.broken = Broken(promise, what)
            self.on_broken()

    # What clients see -----------------------------------------------------------------------------------------------
    def acknowledged(self, producer: Producer, base_offset: int, values: list[bytes]) -> None:
        for number, value in enumerate(values):
            self.decide(producer.name, (producer.topic, producer.shard), base_offset + number, value)

    def shown(self, consumer: Consumer, offset: int, value: bytes) -> None:
        self.decide(consumer.name, (consumer.topic, consumer.shard), offset, value)

    def decide(self, who: str, place: tuple[str, int], offset: int, value: bytes) -> None:
        self.checks += 1
        if self.losses.is_late(place, offset):
            self.losses.note(place, value)
            return
        before = self.decided.setdefault(place, {}).setdefault(offset, value)
        if before != value:
            self.fail("no decided record changes", f"{who} has {value!r} at {offset} of {place}, before {before!r}")

    # What nodes serve -----------------------------------------------------------------------------------------------
    def look_at(self, node_id: int, node: StorageNode) -> None:
        """After each turn of a node: how far its leaders serve readers."""
        table = self.table()
        for shard in node.shards.all():
            if not shard.is_leader or shard.stop is not None:
                continue
            served = shard.high_watermark
            if table is None:
                self._served_unseen[shard.key] = max(served, self._served_unseen.get(shard.key, 0))
                continue
            if self._served.get((node_id, shard.key), -1) < served:
                self._served[(node_id, shard.key)] = served
                self._check_served(node_id, shard.key, served, table)

    def _check_served(self, node_id: int, shard: ShardKey, served: int, table: ShardTable) -> None:
        self.checks += 1
        segment = table.shard(shard).segments[-1]
        self.on_served(node_id, shard, segment)
        if segment.leader is not None and segment.leader != node_id:
            return  # another node was given the shard, and this one does not know yet: it serves what was decided
        if segment.end_offset is not None and served > segment.end_offset:
            self.fail("no decided record is lost", f"{segment.key} ended at {segment.end_offset}, {node_id}: {served}")
        if segment.state is not SegmentState.ACTIVE or served <= segment.base_offset:
            return
        key = segment.key
        if segment.is_direct and served > segment.committed_end:
            what = f"node {node_id} serves {key} up to {served}, the bucket has it up to {segment.committed_end}"
            self.fail("what is served of a Direct segment is in the object store", what)
        self._served_in[key] = max(served, self._served_in.get(key, 0))
        if segment.is_fenced or segment.is_direct:
            return  # its leader has not heard of that, and serves what followers confirmed before they promised
        topic = table.topic(key.topic_id)
        is_quorum = topic.settings.get("acks.policy") == "quorum"
        voters = segment.replicas if is_quorum else segment.isr
        doubted = [one.node_id for one in segment.handed.doubts]
        lacking = {one: end for one in voters if (end := self.end_on(one, key)) < served and one not in self.in_doubt}
        lacking = {one: end for one in lacking if (end := self._end_with_journals(one, key)) < served}
        lacking = {one: end for one, end in lacking.items() if not is_quorum or one not in doubted}
        # Its node says so, and the meta service may not have heard it yet.
        lacking = {one: end for one, end in lacking.items() if end >= self.damaged.get((one, key), -1)}
        published = self._replicas.get(key, segment.replicas)
        is_added = {*published} < {*segment.replicas}  # a moment ago, and no node has heard of it
        fewer = self._fewer.get(key, published if is_added else None) if is_quorum else None
        if fewer is not None and len(lacking) > (len(voters) - 1) // 2:
            voters, lacking = fewer, {one: end for one, end in lacking.items() if one in fewer}
        if len(lacking) > ((len(voters) - 1) // 2 if is_quorum else 0):
            promise = "HW is within what most replicas hold" if is_quorum else "HW is within the committed ISR"
            self.fail(promise, f"node {node_id} serves {key} up to {served}; of {voters} these end at {lacking}")

    # Disks ----------------------------------------------------------------------------------------------------------
    def _file(self, node_id: int, key: SegmentKey) -> Inode | None:
        machine = self.machines.get(node_id)
        if machine is None:
            return None
        try:
            return machine.files.find(self._path_of(key))
        except OSError:
            # A start after a power cut does not look for a name that was lost.
            return None if node_id in self.in_doubt else self._spare(machine, key)

    def _path_of(self, key: SegmentKey) -> str:
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = str(LAYOUT.segment(key))
        return path

    @staticmethod
    def _spare(machine: Machine, key: SegmentKey) -> Inode | None:
        """A file that has not got its name yet, by the identity in its header."""
        try:
            spares = machine.files.find(str(LAYOUT.spares))
        except OSError:
            return None
        for name in sorted(spares.entries):
            inode = spares.entries[name]
            with suppress(Corrupt):
                if decode_segment_header(bytes(inode.data[:SEGMENT_HEADER_BYTES]), source=name).key == key:
                    return inode
        return None

    def written(self, machine: Machine, path: str, inode: Inode, data: bytes | memoryview, position: int) -> None:
        """An offset is given once in a segment. A file without its name belongs to a roll that is not confirmed."""
        if not path.startswith(_SEGMENTS):
            return
        if position < SEGMENT_HEADER_BYTES:
            self._keys.pop(inode, None)
            return
        table, key = self.table(), self._key_of(inode)
        segment = None if table is None or key is None else table.state.find_segment(key)
        if key is None or segment is None or segment.handed.given_up or not self._is_named(machine, key, inode):
            return
        self.checks += 1
        given, view = self._given.setdefault(key, {}), memoryview(data)
        try:
            for at, header in walk(view, source="a write", verify=False):
                batch = header.end_offset, zlib.crc32(view[at : at + header.size_bytes])
                if given.setdefault(header.base_offset, batch) != batch:
                    self.fail("an offset is given once", f"{machine.name} writes another batch at {header} of {key}")
        except Corrupt:
            return  # room ahead, or a batch that a full disk cut

    def _key_of(self, inode: Inode) -> SegmentKey | None:
        key = self._keys.get(inode)
        if key is None:
            with suppress(Corrupt):
                key = decode_segment_header(bytes(inode.data[:SEGMENT_HEADER_BYTES]), source="disk").key
                self._keys[inode] = key
        return key

    def _is_named(self, machine: Machine, key: SegmentKey, inode: Inode) -> bool:
        with suppress(OSError):
            return machine.files.find(self._path_of(key)) is inode
        return False

    def power_goes(self, node_id: int, table: ShardTable | None) -> None:
        """Right before a power cut, which excuses only what it takes itself: all that is owed must be there."""
        for _, segment, held, owed in self._missing(table):
            what = f"{segment.key} was served up to {owed}, and ends at {held} before node {node_id} loses its power"
            self.fail("no decided record is lost", what)

    def disk_lost_something(self, node_id: int, table: ShardTable | None) -> None:
        """What is nowhere now is owed no more. `table`: as the meta service has it, or had it when it died."""
        self.in_doubt[node_id] = None
        for place, segment, held, owed in self._missing(table):
            what = (
                f"{segment.key} was served up to {owed}, and ends at {held} since node {node_id} lost its disk's data"
            )
            if segment.is_direct:
                self.fail("what is served of a Direct segment is in the object store", what)
            if self.is_fsync:
                self.fail("flushed data survives a power cut", what)
            self.lose(place, segment, held, owed)

    def _missing(self, table: ShardTable | None) -> Iterator[tuple[tuple[str, int], Segment, int, int]]:
        """Segments that end, on all disks that the metadata count on and in the bucket, before what is owed of them:
        their place, where they end, and up to where they are owed."""
        for key, segments in ({} if table is None else segments_of(table)).items():
            topic = table.topic(key.topic_id) if table is not None else None
            assert topic is not None
            place = topic.name, key.shard
            is_quorum = topic.settings.get("acks.policy") == "quorum"
            for segment in segments:
                owed = self._owed_up_to(place, segment, is_last=segment is segments[-1])
                held = self.losses.held_up_to(segment, is_quorum=is_quorum)
                if held < owed:
                    yield place, segment, held, owed

    def owed_in(self, segment: Segment) -> int:
        """Up to where a disk or an object must have it."""
        table = self.table()
        if table is None or segment.end_offset is not None:
            return self._served_in.get(segment.key, 0) if segment.end_offset is None else segment.end_offset
        place = table.topic(segment.key.topic_id).name, segment.key.shard
        return self._owed_up_to(place, segment, is_last=True)

    def flushed_end_on(self, node_id: int, key: SegmentKey) -> int:
        """Where the copy ends that a power cut leaves."""
        inode = self._file(node_id, key)
        return -1 if inode is None else self._ends.end_of(inode, key, is_on_disk=True)

    def may_lack(self, node_id: int, key: SegmentKey) -> None:
        """A copy that was sealed: the metadata may list it for a while."""
        self._proven[key, node_id] = None

    def serves_since_ms(self) -> float:
        """For how long the meta service has run; 0 while it does not."""
        return 0.0 if self.table() is None else 1_000 * (self._now_s() - self._loaded_s)

    def _owed_up_to(self, place: tuple[str, int], segment: Segment, *, is_last: bool) -> int:
        end = segment.end_offset
        served = self._served_in.get(segment.key, segment.base_offset)
        if is_last:
            served = max(served, self._served_unseen.get(segment.key.shard_key, 0))
        decided = self.decided.get(place, {})
        told = [one + 1 for one in decided if segment.base_offset <= one and (end is None or one < end)]
        return max([served, *(told if end is not None or is_last else [])])

    def lose(self, place: tuple[str, int], segment: Segment, held: int, owed: int) -> None:
        """Clients are not owed `[held, owed)` of this segment any more."""
        shard = segment.key.shard_key
        self._served_in[segment.key] = held
        self._served_unseen.pop(shard, None)
        for known in [one for one in self._served if one[1] == shard]:
            self._served[known] = min(held, self._served[known])
        self.losses.lose(place, held, owed, self.decided.get(place, {}))
        if place[0] == GROUP_LOG:
            self.on_group_log_lost()

    def end_on(self, node_id: int, key: SegmentKey) -> int:
        """Where the copy there ends, as far as the topic's flush policy counts it."""
        inode = self._file(node_id, key)
        return -1 if inode is None else self._ends.end_of(inode, key, is_on_disk=self.is_fsync)

    def _end_with_journals(self, node_id: int, key: SegmentKey) -> int:
        """The same, with what only a journal has on the disk: the next start brings that to the file."""
        return self._end_on_disk(node_id, key) if self.is_fsync else self.end_on(node_id, key)

    def _end_on_disk(self, node_id: int, key: SegmentKey) -> int:
        """Where the copy ends that the next start after a power cut finds, in the file and the journals."""
        inode = self._file(node_id, key)
        if inode is None:
            return -1
        data = bytearray(inode.on_disk)
        with suppress(OSError, Corrupt):
            folder = self.machines[node_id].files.find(str(LAYOUT.journal))
            for name in sorted(folder.entries):
                whole = folder.entries[name].on_disk
                number = decode_journal_header(whole[:JOURNAL_HEADER_BYTES], source=name).number
                for entry in scan_journal(whole[JOURNAL_HEADER_BYTES:], number, source=name).entries:
                    if entry.segment == key:
                        begin = SEGMENT_HEADER_BYTES + entry.position
                        data.extend(bytes(max(0, begin + len(entry.payload) - len(data))))
                        data[begin : begin + len(entry.payload)] = entry.payload
        return end_of(bytes(data), key)

    def removed(self, machine: Machine, path: str, inode: Inode) -> None:
        """A file is deleted: it must not be the last copy of what is owed."""
        key = LAYOUT.key_of(Path(path))
        table = self.table()
        if key is None or table is None:
            return
        segment = table.state.find_segment(key)
        if segment is None or segment.seal is None or segment.state is SegmentState.DELETED:
            return
        self.checks += 1
        if segment.remote.state is RemoteState.COMPLETE or (segment.is_direct and segment.is_wholly_committed):
            return  # of a Direct one each node can make a copy from the parts in the bucket
        others = [one for one, place in self.machines.items() if place is not machine and self.holds(one, segment)]
        own = next(one for one, place in self.machines.items() if place is machine)
        seal = segment.seal  # a copy that the metadata do not list any more, or not yet, may be the last as well
        is_copy = own in segment.local_nodes or _is_sealed_content(bytes(inode.data), seal.size_bytes, seal.digest)
        if not others and is_copy and seal.end_offset > segment.base_offset:
            self.fail("the last copy is never deleted", f"{machine.name} deletes {path}")

    def holds(self, node_id: int, segment: Segment) -> bool:
        """The whole of a sealed segment."""
        inode, seal = self._file(node_id, segment.key), segment.seal
        assert seal is not None
        return inode is not None and _is_sealed_content(bytes(inode.data), seal.size_bytes, seal.digest)

    # What the meta service is asked and keeps ------------------------------------------------------------------------
    def asked(self, command: Command[Any]) -> None:
        table = self.table()
        if table is None or not isinstance(command, PromiseFence | RollSegment) or command.caller is None:
            return
        segment = table.state.find_segment(command.segment)
        if segment is None or segment.end_offset is not None:
            return  # what a node said before may be forgotten there, and told again
        self.checks += 1
        node_id = command.caller.node_id
        if isinstance(command, PromiseFence):
            promised = self._promised(node_id, command.segment)
            if promised < command.fence:
                what = f"node {node_id} promises {command.fence} of {command.segment}, its disk says {promised}"
                self.fail("a promise is on the disk before it is reported", what)
        elif segment.leader == node_id and node_id not in self.in_doubt:
            flushed = self._end_on_disk(node_id, segment.key)
            if max(flushed, self.damaged.get((node_id, segment.key), -1)) < command.end_offset:
                what = f"node {node_id} ends {segment.key} at {command.end_offset}, its disk has it up to {flushed}"
                self.fail("an end is on the disk before it is reported", what)

    def _promised(self, node_id: int, key: SegmentKey) -> int:
        """As the disk of the node has it for sure."""
        with suppress(OSError):
            content = self.machines[node_id].files.find(str(LAYOUT.fences)).on_disk
            for topic_id, shard, epoch, base_offset, fence in json.loads(content or b'{"fences": []}')["fences"]:
                if (topic_id, shard, epoch, base_offset) == (str(key.topic_id), key.shard, key.epoch, key.base_offset):
                    return int(fence)
        return 0

    def performed(self, table: ShardTable, command: Command[Any], result: Any) -> None:
        """One node at a time uploads a segment. It may repeat a commit once the duty is another's."""
        if not isinstance(command, CommitParts) or command.caller is None:
            return
        for commit, outcome in zip(command.commits, result, strict=True):
            if not isinstance(outcome, Segment) or (commit.segment, commit.part) in self._committed:
                continue
            self.checks += 1
            self._committed[commit.segment, commit.part] = None
            named = uploader_of(outcome, table.state.is_alive, table.state.mount_of)
            if named != command.caller.node_id:
                what = f"node {command.caller.node_id} commits {commit.segment}, not node {named}"
                self.fail("one uploader per commit", what)

    def loaded(self, version: int, published: int) -> None:
        self.checks += 1
        self._loaded_s = self._now_s()
        if version < published:
            self.fail("metadata survive a restart", f"version {version} is loaded, {published} was published")

    # Metadata -------------------------------------------------------------------------------------------------------
    def published(self, table: ShardTable, change_set: ChangeSet) -> None:
        self.checks += 1
        for change in change_set.changes:
            segment = getattr(change, "segment", None)
            if isinstance(segment, Segment):
                self._note_replicas(segment)
                self._check(table, segment)
        self._published += 1
        if self._published % _INVARIANTS_EVERY == 0:
            try:
                table.check_invariants()
            except AssertionError as failure:
                self.fail("the table keeps its invariants", str(failure))
        for act in self.after_publish:
            act(table, change_set)

    def _note_replicas(self, segment: Segment) -> None:
        before = self._replicas.get(segment.key)
        self._replicas[segment.key] = segment.replicas
        if {*segment.replicas} == {*segment.isr}:
            self._fewer.pop(segment.key, None)
        elif before is not None and {*before} < {*segment.replicas}:
            self._fewer[segment.key] = before

    def _check(self, table: ShardTable, segment: Segment) -> None:
        if segment.state is SegmentState.DELETED:
            return
        for part in segment.remote.parts:
            if part.object_key not in self.bucket.objects:
                self.fail("nothing referenced is missing", f"{segment.key} refers to {part.object_key}")
        if segment.remote.manifest_key is not None and segment.remote.manifest_key not in self.bucket.objects:
            self.fail("nothing referenced is missing", f"{segment.key} refers to {segment.remote.manifest_key}")
        served, end = self._served_in.get(segment.key, segment.base_offset), segment.end_offset
        if end is not None and served > end and not segment.handed.given_up:
            self.fail("no decided record is lost", f"{segment.key} ends at {end}, and {served} was served")
        uploadable = max(served, self._served_unseen.get(segment.key.shard_key, 0)) if end is None else end
        if segment.remote.commit_offset > uploadable and not segment.is_direct:
            what = f"{segment.key} is uploaded up to {segment.remote.commit_offset}, {served} was served"
            self.fail("only decided records are uploaded", what)
        if segment.seal is not None:
            self._check_seal(segment)

    def _check_seal(self, segment: Segment) -> None:
        seal = segment.seal
        assert seal is not None
        for node_id in segment.local_nodes:
            if node_id in self.in_doubt or (segment.key, node_id) in self._proven:
                continue
            self._proven[segment.key, node_id] = None
            inode = self._file(node_id, segment.key)
            if inode is None and segment.remote.state is RemoteState.COMPLETE:
                continue  # a late report of a copy that was freed
            data = b"" if inode is None else bytes(inode.on_disk)
            if seal.size_bytes and not _is_sealed_content(data, seal.size_bytes, seal.digest):
                self.fail("seal records are true", f"{segment.key} on node {node_id} is not what {seal} says")

    def deleted_object(self, key: str) -> None:
        table = self.table()
        if table is None:
            return
        for shard in table.snapshot().shards:
            for segment in shard.segments:
                parts = [part.object_key for part in segment.remote.parts]
                if segment.state is not SegmentState.DELETED and key in (*parts, segment.remote.manifest_key):
                    self.fail("nothing referenced is missing", f"{key} is deleted, {segment.key} refers to it")


def _is_sealed_content(data: bytes, size_bytes: int, digest: bytes) -> bool:
    content = memoryview(data)[SEGMENT_HEADER_BYTES : SEGMENT_HEADER_BYTES + size_bytes]
    if len(content) != size_bytes:
        return False
    try:
        return extend_digest_past(EMPTY_DIGEST, content) == (digest, size_bytes)
    except ValueError:
        return False
