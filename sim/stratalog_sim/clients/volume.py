"""Reads a retired node's directory for the other nodes, and writes nothing there. Stands in for
`storage_node/stratalog_node/volume`: no member, no leader, no uploads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratalog.model.commands.mount_commands import OpenVolume
from stratalog.model.errors import Conflict, NotFound, StratalogError
from stratalog_sim.environment.disk import Disk
from stratalog_sim.environment.process import Ask, Process, Request, Sleep, Task
from stratalog_sim.judging.judge import Judge
from stratalog_sim.node.serving import PeerRead
from stratalog_sim.node.view import View
from stratalog_sim.service.meta import Perform, Watch

_RETRY_MS = 150
_WATCH_MS = 900
_AT_ONCE = 4


class VolumeLife(Process):
    """One process. Its name is its address, and the id of its start."""

    def __init__(self, node_id: int, disk: Disk, judge: Judge, tell: Callable[..., None], **place: Any) -> None:
        super().__init__(**place)
        self.node_id = node_id
        self.disk = disk
        self.judge = judge
        self._tell = tell
        self._view = View()

    def begin(self) -> None:
        self.spawn(self._run())

    def _run(self) -> Task:
        storage_id = f"storage-{self.node_id}-{self.disk.storage}"
        opened = OpenVolume(self.node_id, storage_id, self.name, 9092, self.name)
        while True:
            try:
                yield Ask("meta", Perform(opened), 300)
                break
            except (NotFound, Conflict) as error:  # who runs it starts it again
                self._tell("cannot read the directory yet:", error)
            except StratalogError:
                pass
            yield Sleep(_RETRY_MS)
        while not self._is_replaced():
            try:
                self._view.take((yield Ask("meta", Watch(self._view.version), _WATCH_MS)))
            except StratalogError:
                continue
        self._tell("stops: its time is over")
        self.is_alive = False

    def _is_replaced(self) -> bool:
        """Whether another process reads the directory, or none has to any more."""
        if self._view.version < 0:
            return False
        mount = self._view.mount_of(self.node_id)
        return mount is None or (mount.volume is not None and mount.volume.start_id != self.name)

    def asked(self, sender: str, request: Request) -> None:
        read = request.what
        assert isinstance(read, PeerRead), f"{read} is nothing for a directory"
        segment, file = self._view.segment(read.key), self.disk.files.get(read.key)
        found = []
        if segment is not None and segment.seal is not None and file is not None:
            end = segment.seal.end_offset if self.node_id in segment.local_nodes else segment.base_offset
            found = [one for one in file.whole(read.key) if read.offset < one.end_offset <= end]
        self.judge.leaving.volume_serves(self.node_id, read.key, found[:_AT_ONCE])
        self.reply(sender, request, tuple(found[:_AT_ONCE]))
