"""What befalls directories though no process and no machine fails: a batch that cannot be read any more, a file that is
shorter than what its node wrote, an older state that is put back, a copy that is started while its node runs.

One of several copies at a time: what is damaged is on another disk that the cluster counts on, as far as it is owed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.machines.table.shard_table import ShardTable
from stratalog.model.batch import BatchHeader
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.errors import Corrupt, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet, NodeChanged, NodeInfo
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.settings.choices import FlushPolicy
from stratalog_node.disk import ends_in_memory, life_record
from stratalog_node.disk.checkpoints import flushed_ends
from stratalog_node.identity_file import lock_directory
from stratalog_node.registration import begin_life
from stratalog_sim.product.files import Inode
from stratalog_sim.product.losses import segments_of
from stratalog_sim.product.machine import MEMORY, PROCESS, Machine, Process
from stratalog_sim.product.meta_host import MetaLink
from stratalog_sim.product.truth import LAYOUT
from stratalog_sim.product.world import LEASE_MS, PORT, ProductWorld

KINDS: Final = ("rot", "shorten", "back up", "put back", "clone", "new disk")
MOSTLY: Final = (*KINDS, "rot", "rot", "shorten", "shorten", "back up", "put back", "put back", "put back", "roll")
_CLONE_LIVES_S: Final = 1.5
_OTHERS_LATE_S: Final = 0.2


class _CloneLink(MetaLink):
    """Notes by which start a copy asks to be the node."""

    def __init__(self, *args: Any, note: Callable[[str], None]) -> None:
        super().__init__(*args)
        self._note = note

    async def perform(self, command: Any, *, validate_only: bool = False) -> Any:
        if isinstance(command, RegisterNode):
            self._note(command.start_id)
        return await super().perform(command, validate_only=validate_only)


class BadDirectories:
    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._backups: dict[int, Inode] = {}
        self._hit: dict[tuple[int, SegmentKey], None] = {}
        """Copies that something befell: they are no longer counted on as the other one."""
        self._shortened: dict[int, None] = {}
        """Nodes with a file whose missing end may be shown by the memory of ends alone."""
        self._clones: dict[str, Process] = {}
        """By the start that asked."""
        self._copies: dict[int, Process] = {}
        """By node: the last one that runs over a copy of its directory."""
        self._has_new_disk = False
        self.done: dict[str, int] = {}
        """How often each kind occurred."""
        world.truth.after_publish.append(self._published)

    def kinds(self) -> dict[str, Callable[[int, float], None]]:
        """Each takes a node, and how long it is down."""
        acts = {"rot": self.rot, "shorten": self.shorten, "put back": self.put_back, "new disk": self.replace_disk}
        found: dict[str, Callable[[int, float], None]] = {
            kind: partial(self._perhaps_with_others, kind, act) for kind, act in acts.items()
        }
        return {**found, "back up": self.back_up, "clone": self.clone}

    def _perhaps_with_others(self, kind: str, act: Callable[[int, float], bool], node_id: int, down_s: float) -> None:
        """Perhaps all die, and that node is the first to come back."""
        world = self._world
        if not act(node_id, down_s):
            return
        self.done[kind] = self.done.get(kind, 0) + 1
        if world.rng.random() < 0.6:
            for other in world.hosts:
                if other != node_id:
                    world.kill(other, down_s=down_s + _OTHERS_LATE_S + 1.5 * world.rng.random())

    # What is there --------------------------------------------------------------------------------------------------
    @contextmanager
    def _as_process_of(self, machine: Machine) -> Iterator[None]:
        """The product's own code reads what lies on the disk."""
        token = PROCESS.set(Process(machine))
        try:
            yield
        finally:
            PROCESS.reset(token)

    def _file(self, machine: Machine, key: SegmentKey) -> Inode | None:
        with suppress(OSError):
            return machine.files.find(str(LAYOUT.segment(key)))
        return None

    @staticmethod
    def _batches(inode: Inode) -> list[tuple[int, BatchHeader]]:
        """Whole ones, each with its position in the file."""
        found: list[tuple[int, BatchHeader]] = []
        view = memoryview(bytes(inode.data))[SEGMENT_HEADER_BYTES:]
        with suppress(Corrupt):
            for at, header in walk(view, source="disk"):
                found.append((SEGMENT_HEADER_BYTES + at, header))
        return found

    def _segments(self) -> list[Segment]:
        table = self._world.meta.last_table
        return [] if table is None else [one for segments in segments_of(table).values() for one in segments]

    def _can_be_hit(self, node_id: int) -> list[SegmentKey]:
        """Open segments that this node has a copy of, and another one, too."""
        machine = self._world.hosts[node_id].machine
        return [
            one.key
            for one in self._segments()
            if one.state is SegmentState.ACTIVE
            and node_id in one.replicas
            and (node_id, one.key) not in self._hit
            and self._file(machine, one.key) is not None
            and self._is_elsewhere(node_id, one)
        ]

    def _is_elsewhere(self, node_id: int, segment: Segment) -> bool:
        """Whether another disk that counts has all of it that is owed."""
        world, truth = self._world, self._world.truth
        if node_id not in (*segment.replicas, *segment.local_nodes):
            return True
        owed = truth.owed_in(segment)
        if segment.state is SegmentState.SEALED:
            if segment.end_offset == segment.base_offset:
                return True
            counted = segment.local_nodes
        else:
            counted = segment.replicas if world.is_quorum else segment.isr
        return any(
            truth.flushed_end_on(other, segment.key) >= owed
            for other in counted
            if other != node_id
            and other not in truth.in_doubt
            and (other, segment.key) not in self._hit
            and not self._is_copied(other)
        )

    def _hurt(self, node_id: int, key: SegmentKey, end_offset: int) -> None:
        self._hit[node_id, key] = None
        truth = self._world.truth
        truth.damaged[node_id, key] = end_offset
        truth.disk_lost_something(node_id, self._world.meta.last_table)

    # Bit rot ----------------------------------------------------------------------------------------------------------
    def rot(self, node_id: int, down_s: float) -> bool:
        """The node dies, and a batch that no checkpoint covers is damaged when it comes back. False: nothing can be
        spared."""
        world = self._world
        machine = world.hosts[node_id].machine
        with self._as_process_of(machine):
            checked = flushed_ends(LAYOUT.checkpoints)
        cells = []
        for key in self._can_be_hit(node_id):
            inode = machine.files.find(str(LAYOUT.segment(key)))
            batches = self._batches(inode)
            above = [(at, one) for at, one in batches if one.base_offset >= checked.get(key, 0)]
            cells += [(key, inode, at, one, batches[-1][1].end_offset) for at, one in above]
        if not cells:
            return False
        key, inode, at, header, end_offset = world.rng.choice(cells)
        world.kill(node_id, down_s=down_s)
        inode.overwrite(at + world.rng.randrange(header.size_bytes), world.rng.randrange(1, 256))
        if world.rng.random() < 0.5 and node_id not in self._shortened:
            machine.forget_memory()  # the damage shows without that, too
        world.say(f"node {node_id}: the batch at {header.base_offset} of {key} cannot be read any more")
        self._hurt(node_id, key, end_offset)
        return True

    # Missing ends -----------------------------------------------------------------------------------------------------
    def shorten(self, node_id: int, down_s: float) -> bool:
        """The node dies, and the file of an open segment is shorter when it comes back: it ends at a whole batch, its
        last batches are zeros, or it is gone. False: nothing on its disk can be spared."""
        world, rng = self._world, self._world.rng
        machine = world.hosts[node_id].machine
        keys = self._can_be_hit(node_id)
        if not keys:
            return False
        world.kill(node_id, down_s=down_s)
        ends = self._ends_in_memory(machine)
        found = [(key, self._batches(machine.files.find(str(LAYOUT.segment(key))))) for key in keys]
        # Without the memory of its end nothing could show what is missing.
        found = [(key, whole) for key, whole in found if whole and ends.get(key, -1) >= whole[-1][1].end_offset]
        if not found:
            return False
        key, whole = rng.choice(found)
        self._shortened[node_id] = None
        kept, is_zeroed = rng.randrange(len(whole)), rng.random() < 0.4
        path, begin = str(LAYOUT.segment(key)), whole[kept][0]
        if kept == 0 and not is_zeroed:
            machine.files.lose(path)
        else:
            machine.files.find(path).cut(begin, is_zeroed=is_zeroed)
        how = "is gone" if kept == 0 and not is_zeroed else f"has {kept} of {len(whole)} batches"
        world.say(f"node {node_id}: the file of {key} {how}{', and zeros' if is_zeroed else ''}")
        self._hurt(node_id, key, whole[-1][1].end_offset)
        return True

    def _ends_in_memory(self, machine: Machine) -> dict[SegmentKey, int]:
        """Of a machine whose node is dead."""
        storage_id = self._identity(machine).get("storage_id", "")
        with self._as_process_of(machine):
            return ends_in_memory._read(Path(MEMORY) / f"stratalog-{storage_id}")

    @staticmethod
    def _identity(machine: Machine) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(bytes(machine.files.find(str(LAYOUT.node_file)).data))
        except (OSError, ValueError):
            return {}
        return found

    # Older states -----------------------------------------------------------------------------------------------------
    def back_up(self, node_id: int, _: float = 0.0) -> None:
        machine = self._world.hosts[node_id].machine
        if self._identity(machine):
            self._backups[node_id] = machine.files.root.copied()
            self._world.say(f"node {node_id}: its directory is backed up")

    def put_back(self, node_id: int, down_s: float) -> bool:
        """The node dies, and has an older state of its directory when it comes back. False: there is none, or the
        present one cannot be spared."""
        world, backup = self._world, self._backups.get(node_id)
        machine = world.hosts[node_id].machine
        if backup is None:
            self.back_up(node_id)
            return False
        if not self._can_spare_all(node_id):
            return False
        world.kill(node_id, down_s=down_s)
        ends = self._ends_on(node_id)
        # Within a life only the memory can show that of a whole file system, and other damage may have taken it.
        is_file_system = world.rng.random() < 0.5 and bool(machine.memory.find(MEMORY).entries)
        machine.files.put_back(backup, is_file_system=is_file_system)
        table = world.meta.last_table
        known = None if table is None else table.state.nodes.get(node_id)
        with self._as_process_of(machine):
            starts = life_record._read(LAYOUT.life_file).starts
        is_same_life = known is not None and known.start_id in starts
        if not is_same_life and world.rng.random() < 0.5:
            machine.forget_memory()
        how = "as a file system" if is_file_system else "file by file"
        life = ", of the same life" if is_same_life else ""
        world.say(f"node {node_id}: an older state of its directory is put back {how}{life}")
        self._hurt_all(node_id, ends)
        return True

    def replace_disk(self, node_id: int, down_s: float) -> bool:
        """The node dies, and has a new, empty disk when it comes back; one node does, once. False: it did, or the
        present one cannot be spared. With `acks.policy=quorum` a shard whose other copies are damaged, too, would wait
        for a person, because what was on that disk is unknown."""
        world = self._world
        if self._has_new_disk or world.is_quorum or not self._can_spare_all(node_id):
            return False
        self._has_new_disk = True
        world.kill(node_id, down_s=down_s)
        ends = self._ends_on(node_id)
        world.hosts[node_id].machine.get_new_disk()
        self._backups.pop(node_id, None)
        world.say(f"node {node_id}: gets a new disk")
        self._hurt_all(node_id, ends)
        return True

    def _can_spare_all(self, node_id: int) -> bool:
        return all(
            one.remote.state is RemoteState.COMPLETE or self._is_elsewhere(node_id, one) for one in self._segments()
        )

    def _ends_on(self, node_id: int) -> dict[SegmentKey, int]:
        """Of all copies that count there."""
        truth = self._world.truth
        own = [one.key for one in self._segments() if node_id in (*one.replicas, *one.local_nodes)]
        return {key: truth.end_on(node_id, key) for key in own}

    def _hurt_all(self, node_id: int, ends: dict[SegmentKey, int]) -> None:
        truth = self._world.truth
        for key, end_offset in ends.items():
            truth.may_lack(node_id, key)
            self._hit[node_id, key] = None
            truth.damaged[node_id, key] = end_offset
        truth.disk_lost_something(node_id, self._world.meta.last_table)

    # Copies -----------------------------------------------------------------------------------------------------------
    def clone(self, node_id: int, _: float = 0.0) -> None:
        """A copy of the directory is started somewhere, under the node's id. If it is taken for the node, which is dead
        then, no replica counts on what the node has: so another one must have that."""
        world = self._world
        original = world.hosts[node_id].machine
        identity = self._identity(original)
        if not identity or not self._can_spare_all(node_id):
            return
        number = len(self._clones) + 1
        machine = Machine(f"clone-{number}", f"10.0.2.{number}", Random(world.rng.random()))
        machine.files.put_back(original.files.root.copied(), is_file_system=False)
        world.kernel.machines[machine.name] = machine
        process = self._copies[node_id] = Process(machine)
        info = NodeInfo(node_id, identity["storage_id"], machine.host, PORT)
        world.say(f"node {node_id}: a copy of its directory is started")
        self.done["clone"] = self.done.get("clone", 0) + 1
        world.spawn(process, self._run_clone(process, info, f"boot-{original.name}-{original.boots}"))
        world.after(_CLONE_LIVES_S, self._end_clone, process)

    def _is_copied(self, node_id: int) -> bool:
        return node_id in self._copies and not self._copies[node_id].is_dead

    async def _run_clone(self, process: Process, info: NodeInfo, boot_id: str) -> None:
        def note(start_id: str) -> None:
            self._clones[start_id] = process

        link = _CloneLink(self._world.meta, process.machine, note=note)
        lock = lock_directory(LAYOUT.root)
        flush_policy = FlushPolicy.FSYNC if self._world.is_fsync else FlushPolicy.REPLICATED
        with suppress(StratalogError):
            await begin_life(link, info, LAYOUT, lock, boot_id=boot_id, flush_policy=flush_policy)

    def _end_clone(self, process: Process) -> None:
        process.is_dead = True
        self._world.kernel.forget(process.machine)

    def _published(self, table: ShardTable, change_set: ChangeSet) -> None:
        for change in change_set.changes:
            if isinstance(change, NodeChanged):
                process = self._clones.get(table.state.nodes[change.node.node_id].start_id)
                if process is not None and not process.is_dead:
                    self._let_in(change.node.node_id)
                    self._end_clone(process)

    def _let_in(self, node_id: int) -> None:
        """The meta service took a copy for the node."""
        world = self._world
        world.say(f"a copy is node {node_id} now")
        self._hit.update(dict.fromkeys((node_id, key) for key in self._ends_on(node_id)))
        node = world.hosts[node_id].node
        if node is None or world.truth.serves_since_ms() < LEASE_MS:
            return
        silent_ms = world.kernel.monotonic_ns() // 1_000_000 - node._heartbeats.heard_ms
        if silent_ms < LEASE_MS:
            what = f"node {node_id} lives: the service heard it {silent_ms} ms ago"
            world.truth.fail("a copy of a living node's directory is refused", what)
