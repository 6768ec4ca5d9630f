"""What must hold, seen from outside: the answers that clients got, what is on each disk, what the metadata say.

It knows the disks and the metadata of the whole world, and of a node no more than how far each of its shards serves.
The first broken promise is kept, and ends the world.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, decode_segment_header
from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest_past
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import ChangeSet
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.node import StorageNode
from stratalog_sim.broken import Broken
from stratalog_sim.product.bucket import Bucket
from stratalog_sim.product.clients import Consumer, Producer
from stratalog_sim.product.files import Inode
from stratalog_sim.product.kernel import ROOT
from stratalog_sim.product.machine import Machine

Values = dict[tuple[str, int], dict[int, bytes]]
"""By topic and shard, then by offset."""
LAYOUT = NodeLayout(Path(ROOT) / "data")


class Truth:
    def __init__(
        self, machines: dict[int, Machine], bucket: Bucket, table: Callable[[], ShardTable | None], *, is_fsync: bool
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
        self._sealed: dict[SegmentKey, None] = {}
        self.in_doubt: dict[int, None] = {}
        """Nodes that may be without what they had, and have not begun another life since."""

    def fail(self, promise: str, what: str) -> None:
        if self.broken is None:
            self.broken = Broken(promise, what)
            self.on_broken()

    # What clients see -----------------------------------------------------------------------------------------------
    def acknowledged(self, producer: Producer, base_offset: int, values: list[bytes]) -> None:
        for number, value in enumerate(values):
            self._decide(producer.name, (producer.topic, producer.shard), base_offset + number, value)

    def shown(self, consumer: Consumer, offset: int, value: bytes) -> None:
        self._decide(consumer.name, (consumer.topic, consumer.shard), offset, value)

    def _decide(self, who: str, place: tuple[str, int], offset: int, value: bytes) -> None:
        self.checks += 1
        before = self.decided.setdefault(place, {}).setdefault(offset, value)
        if before != value:
            self.fail("no decided record changes", f"{who} has {value!r} at {offset} of {place}, before {before!r}")

    # What nodes serve -----------------------------------------------------------------------------------------------
    def look_at(self, node_id: int, node: StorageNode) -> None:
        """After each turn of a node: how far its leaders serve readers."""
        table = self.table()
        if table is None:
            return
        for shard in node.shards.all():
            if not shard.is_leader or shard.stop is not None:
                continue
            served = shard.high_watermark
            if self._served.get((node_id, shard.key), -1) < served:
                self._served[(node_id, shard.key)] = served
                self._check_served(node_id, shard.key, served, table)

    def _check_served(self, node_id: int, shard: ShardKey, served: int, table: ShardTable) -> None:
        self.checks += 1
        segment = table.shard(shard).segments[-1]
        if segment.leader is not None and segment.leader != node_id:
            return  # another node was given the shard, and this one does not know yet: it serves what was decided
        if segment.end_offset is not None and served > segment.end_offset:
            self.fail("no decided record is lost", f"{segment.key} ended at {segment.end_offset}, {node_id}: {served}")
        if segment.state is not SegmentState.ACTIVE or segment.is_fenced or served <= segment.base_offset:
            return
        key = segment.key
        topic = table.topic(key.topic_id)
        is_quorum = topic.settings.get("acks.policy") == "quorum"
        voters = segment.replicas if is_quorum else segment.isr
        lacking = {one: end for one in voters if (end := self.end_on(one, key)) < served and one not in self.in_doubt}
        if len(lacking) > ((len(voters) - 1) // 2 if is_quorum else 0):
            promise = "HW is within what most replicas hold" if is_quorum else "HW is within the committed ISR"
            self.fail(promise, f"node {node_id} serves {key} up to {served}; of {voters} these end at {lacking}")

    # Disks ----------------------------------------------------------------------------------------------------------
    def _file(self, node_id: int, key: SegmentKey) -> Inode | None:
        machine = self.machines.get(node_id)
        if machine is None:
            return None
        try:
            return machine.files.find(str(LAYOUT.segment(key)))
        except OSError:
            return self._spare(machine, key)

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

    def end_on(self, node_id: int, key: SegmentKey) -> int:
        """Where the copy there ends, as far as the topic's flush policy counts it."""
        inode = self._file(node_id, key)
        if inode is None:
            return -1
        data = inode.on_disk if self.is_fsync else bytes(inode.data)
        end = key.base_offset
        try:
            for _, header in walk(memoryview(data)[SEGMENT_HEADER_BYTES:], source="disk", verify=False):
                end = header.end_offset
        except Corrupt:
            pass  # room ahead, or a batch that is not whole
        return end

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
        if segment.remote.state is RemoteState.COMPLETE:
            return
        others = [one for one, place in self.machines.items() if place is not machine and self._holds(one, segment)]
        own = next(one for one, place in self.machines.items() if place is machine)
        if not others and own in segment.local_nodes and segment.seal.end_offset > segment.base_offset:
            self.fail("the last copy is never deleted", f"{machine.name} deletes {path}")

    def _holds(self, node_id: int, segment: Segment) -> bool:
        inode, seal = self._file(node_id, segment.key), segment.seal
        assert seal is not None
        return inode is not None and _is_sealed_content(bytes(inode.data), seal.size_bytes, seal.digest)

    # Metadata -------------------------------------------------------------------------------------------------------
    def published(self, table: ShardTable, change_set: ChangeSet) -> None:
        self.checks += 1
        for change in change_set.changes:
            segment = getattr(change, "segment", None)
            if isinstance(segment, Segment):
                self._check(table, segment)

    def _check(self, table: ShardTable, segment: Segment) -> None:
        if segment.state is SegmentState.DELETED:
            return
        for part in segment.remote.parts:
            if part.object_key not in self.bucket.objects:
                self.fail("nothing referenced is missing", f"{segment.key} refers to {part.object_key}")
        if segment.remote.manifest_key is not None and segment.remote.manifest_key not in self.bucket.objects:
            self.fail("nothing referenced is missing", f"{segment.key} refers to {segment.remote.manifest_key}")
        if segment.seal is not None and segment.key not in self._sealed:
            self._sealed[segment.key] = None
            self._check_seal(segment)

    def _check_seal(self, segment: Segment) -> None:
        seal = segment.seal
        assert seal is not None
        for node_id in segment.local_nodes:
            inode = self._file(node_id, segment.key)
            if node_id in self.in_doubt:
                continue
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
