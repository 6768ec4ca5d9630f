"""What every part of a node uses: its disk, its copy of the metadata, the judge, and the way to the meta service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from stratalog.machines.tiering.upload_duty import keeper_of, uploader_of
from stratalog.model.commands import table_commands as commands
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Life
from stratalog.model.segment import Segment
from stratalog_sim.environment.disk import Disk
from stratalog_sim.environment.process import Ask, Process, Sleep
from stratalog_sim.judging.judge import Judge
from stratalog_sim.node.view import View
from stratalog_sim.service.meta import LEASE_MS, Perform

META_TIMEOUT_MS = 300


class DiskThread:
    """Work of a node that waits for its disk: it pauses while the disk hangs."""

    def __init__(self, node: NodeShell) -> None:
        self._node = node

    @property
    def is_alive(self) -> bool:
        return self._node.is_alive

    @property
    def paused_until_ms(self) -> int:
        return max(self._node.paused_until_ms, self._node.disk.hangs_until_ms)


class NodeShell(Process):
    """The base of `NodeLife`. It knows none of the node's parts."""

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        judge: Judge,
        *,
        has_store: bool,
        clock_ms: Callable[[], int],
        tell: Callable[..., None],
        **place: Any,
    ) -> None:
        super().__init__(f"node-{node_id}", **place)
        self.node_id = node_id
        self.disk = disk
        self.judge = judge
        self.tell = tell
        self.view = View()
        self.life = Life(node_id, 0)
        self.token = 0
        self.has_store = has_store
        self.heard_by_service_ms = -1_000_000
        """Up to when the meta service is known to have heard this node."""
        self._heard_service_ms = -1_000_000
        self._clock_ms = clock_ms
        self._disk_thread = DiskThread(self)

    @property
    def now_ms(self) -> int:
        return self._clock_ms()

    @property
    def has_service(self) -> bool:
        """The meta service answered within the last lease."""
        return self.scheduler.now_ms - self._heard_service_ms < 2 * LEASE_MS

    def ask_meta(self, command: commands.Command[Any]) -> Ask:
        if isinstance(command, commands.NodeCommand):
            command = replace(command, caller=self.life)
        return Ask("meta", Perform(command), META_TIMEOUT_MS)

    def is_fsync(self, topic_id: UUID) -> bool:
        return self.view.topics[topic_id].settings.get("flush.policy") == "fsync"

    def on_disk(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        """What a disk thread does: later, and once the disk does not hang."""
        self.scheduler.after(delay_ms + self.disk.slow_ms, self._disk_thread, call, *args)

    def disk_work(self, delay_ms: int) -> Sleep:
        """For a task: the same."""
        return Sleep(delay_ms + self.disk.slow_ms, self._disk_thread)

    def is_shared(self, key: SegmentKey) -> bool:
        """Whether other nodes take part in it. A segment with a single replica, by intention or because no other node
        lived when it was opened, continues as on a single node, and so do the segments that it was rolled into."""
        segment = self.view.segment(key)
        if segment is None:
            before = [one for one in self.view.segments(key.shard_key) if one.epoch < key.epoch]
            segment = before[-1] if before else None
        if segment is not None:
            return len(segment.replicas) > 1
        topic = self.view.topics.get(key.topic_id)
        return topic is not None and topic.replication_factor > 1

    def has_sealed_copy(self, segment: Segment) -> bool:
        """Whether its file is there, and as long as its seal says."""
        file = self.disk.files.get(segment.key)
        return file is not None and (segment.seal is None or file.size_bytes >= segment.seal.size_bytes)

    def uploads_segment(self, segment: Segment) -> bool:
        return uploader_of(segment, self.view.is_alive, self.view.mount_of) == self.node_id

    def keeps(self, segment: Segment) -> bool:
        """Of a DELETED segment: it takes away what all share of it."""
        view = self.view
        keeper = keeper_of(segment, view.is_alive, view.holder_of, view.is_retired, view.first_living)
        return keeper == self.node_id

    # What parts need of each other ------------------------------------------------------------------------------------
    def note_dirty(self, shard_key: ShardKey, key: SegmentKey) -> None:
        """A file of that shard was written."""
        raise NotImplementedError

    def committed_grew(self, key: ShardKey, epoch: int) -> None:
        raise NotImplementedError
