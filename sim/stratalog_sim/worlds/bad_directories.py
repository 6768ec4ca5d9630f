"""What befalls directories though no process and no machine fails: a batch that cannot be read any more, a file that is
shorter than what its node wrote, an older state that is put back, a copy that is started while its node runs.

One of several copies at a time: what is damaged is on another disk that the cluster counts on, as far as it is owed.
"""

from __future__ import annotations

from stratalog.model.commands import table_commands as commands
from stratalog.model.errors import StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import NodeInfo
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog_sim.broken import Broken
from stratalog_sim.environment.disk import Disk
from stratalog_sim.environment.process import Ask, Process, Sleep, Task
from stratalog_sim.service.meta import LEASE_MS, Perform
from stratalog_sim.worlds.simulated_machines import SimulatedMachines

_CLONE = "clone-"
_TRIES = 15


class Clone(Process):
    """A process over a copy of a node's directory, which asks to be that node."""

    def ask(self, command: commands.RegisterNode) -> Task:
        for _ in range(_TRIES):
            try:
                yield Ask("meta", Perform(command), 300)
                return
            except StratalogError:
                yield Sleep(100)


def is_of_clone(command: object) -> bool:
    return isinstance(command, commands.RegisterNode) and command.start_id.startswith(_CLONE)


class BadDirectories:
    def __init__(self, world: SimulatedMachines) -> None:
        self._world = world
        self._backups: dict[int, Disk] = {}
        self._rotten: set[SegmentKey] = set()
        self._clones = 0

    # Bit rot ----------------------------------------------------------------------------------------------------------
    def rot(self, node_id: int, *, down_ms: int) -> bool:
        """The node dies, and a batch of a segment that has not ended is damaged when it comes back. False: nothing on
        its disk can be spared."""
        world = self._world
        disk = world.disks[node_id]
        keys = [key for key in disk.files if key not in self._rotten and self._is_elsewhere(node_id, key, is_open=True)]
        cells = [(key, at) for key in keys for at, cell in enumerate(disk.files[key].whole(key)) if cell.count]
        if not cells:
            return False
        key, at = world.rng.choice(cells)
        world.kill(node_id, down_ms=down_ms)
        end_offset = disk.files[key].whole(key)[-1].end_offset
        disk.rot(key, at)
        disk.forget_ends()  # the damage shows without that, too
        self._rotten.add(key)
        world.judge.damaged[node_id, key] = end_offset
        world.judge.excuse_unheld(node_id)
        world.say(f"node {node_id}: batch {at} of", key, "cannot be read any more")
        return True

    # Missing ends -----------------------------------------------------------------------------------------------------
    def shorten(self, node_id: int, *, down_ms: int) -> bool:
        """The node dies, and the file of a segment that has not ended is shorter when it comes back: it ends at a whole
        batch, its last batches are zeros, or it is gone. False: nothing on its disk can be spared."""
        world = self._world
        disk, rng = world.disks[node_id], world.rng
        keys = [key for key in disk.files if key not in self._rotten and self._is_elsewhere(node_id, key, is_open=True)]
        # Without the memory of its end nothing could show what is missing: see `Disk.forget_ends`.
        keys = [key for key in keys if self._is_end_known(disk, key)]
        if not keys:
            return False
        key = rng.choice(keys)
        world.kill(node_id, down_ms=down_ms)
        whole = disk.files[key].whole(key)
        kept, is_zeroed = rng.randrange(len(whole)), rng.random() < 0.4
        if kept == 0 and not is_zeroed:
            disk.lose(key)
        else:
            disk.shorten(key, kept, is_zeroed=is_zeroed)
        self._rotten.add(key)
        world.judge.damaged[node_id, key] = whole[-1].end_offset
        world.judge.excuse_unheld(node_id)
        how = "is gone" if key not in disk.files else f"has {kept} of {len(whole)} batches"
        world.say(f"node {node_id}: the file of", key, f"{how}{', and zeros' if is_zeroed else ''}")
        return True

    @staticmethod
    def _is_end_known(disk: Disk, key: SegmentKey) -> bool:
        whole = disk.files[key].whole(key)
        return bool(whole) and disk.written_offset(key) >= whole[-1].end_offset

    def _is_elsewhere(self, node_id: int, key: SegmentKey, *, is_open: bool = False) -> bool:
        """Whether another disk that counts has all of it that is owed."""
        judge = self._world.judge
        segment, truth = judge.segment_of(key.shard_key, key.epoch), judge.shards.get(key.shard_key)
        if segment is None or segment.key != key or truth is None:
            return not is_open
        if node_id not in (*segment.replicas, *segment.local_nodes):
            return not is_open
        if is_open and segment.state is not SegmentState.ACTIVE:
            return False
        owed = [batch.end_offset for batch in truth.decided.values() if batch.epoch == key.epoch]
        return any(
            judge.end_on(other, key, is_flushed=True) >= max(owed, default=key.base_offset)
            for other in self._counted_on(segment, is_quorum=truth.is_quorum)
            if other != node_id and other not in judge.in_doubt and (other, key) not in judge.damaged
        )

    @staticmethod
    def _counted_on(segment: Segment, *, is_quorum: bool) -> tuple[int, ...]:
        if segment.state is SegmentState.SEALED:
            return segment.local_nodes
        return segment.replicas if is_quorum else segment.isr

    # Older states -----------------------------------------------------------------------------------------------------
    def back_up(self, node_id: int) -> None:
        self._backups[node_id] = self._world.disks[node_id].backup()
        self._world.say(f"node {node_id}: its directory is backed up")

    def put_back(self, node_id: int, *, down_ms: int) -> bool:
        """The node dies, and has an older state of its directory when it comes back. False: there is none, or the
        present one cannot be spared."""
        world, backup = self._world, self._backups.get(node_id)
        disk = world.disks[node_id]
        if backup is None:
            self.back_up(node_id)
            return False
        if backup.storage != disk.storage or not self._can_spare(node_id):
            return False
        world.kill(node_id, down_ms=down_ms)
        place = disk.place
        disk.put_back(backup)
        known, is_file_system = world.meta.table.state.nodes.get(node_id), world.rng.random() < 0.5
        if is_file_system:  # it looks as it did then
            disk.place = place
            disk.starts_place = place if backup.starts_place == backup.place else -1
        if is_file_system and known is not None and known.start_id in disk.starts:
            disk.short.update(dict.fromkeys(disk.ends_in_memory))
        elif world.rng.random() < 0.5:
            disk.forget_ends()  # the process comes back in another container
        for entry in world.meta.table.state.shards.values():
            for segment in entry.segments.values():
                if node_id in (*segment.local_nodes, *(report.node_id for report in segment.handed.reports)):
                    world.judge.put_back[node_id, segment.key] = None
        world.judge.lost_power(node_id)
        world.say(f"node {node_id}: an older state of its directory is put back")
        return True

    def _can_spare(self, node_id: int) -> bool:
        for entry in self._world.meta.table.state.shards.values():
            for segment in entry.segments.values():
                is_stored = segment.remote.state is RemoteState.COMPLETE
                if not is_stored and not self._is_elsewhere(node_id, segment.key):
                    return False
        return True

    # Copies -----------------------------------------------------------------------------------------------------------
    def clone(self, node_id: int) -> None:
        """A copy of the directory is started somewhere, under the node's id."""
        world = self._world
        self._clones += 1
        disk = world.disks[node_id].backup()
        clone = Clone(f"{_CLONE}{self._clones}", world.scheduler, world.network)
        world.network.join(clone.name, clone)
        info = NodeInfo(node_id, f"storage-{node_id}-{disk.storage}", clone.name, 9092, world.rack_of(node_id))
        boot_id = f"boot-{disk.storage}-{disk.boot}"
        command = commands.RegisterNode(info, clone.name, boot_id, seat=f"{boot_id}/{clone.name}")
        world.say(f"node {node_id}: a copy of its directory is started")
        clone.spawn(clone.ask(command))

    def let_in(self, node_id: int) -> None:
        """The meta service took a copy for the node."""
        world = self._world
        node, now_ms = world.nodes.get(node_id), world.scheduler.now_ms
        if node is None or not node.is_serving or now_ms - world.meta_since_ms < LEASE_MS:
            return
        if now_ms - node.heard_by_service_ms < LEASE_MS:
            raise Broken("a copy of a living node's directory is refused", f"node {node_id} lives")
