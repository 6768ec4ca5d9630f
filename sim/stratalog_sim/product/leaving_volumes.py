"""Processes that read the directories of retired nodes: the product's own `VolumeNode`, on the machine of the node."""

from __future__ import annotations

from stratalog.model.errors import StratalogError
from stratalog.settings.process import ProcessSettings
from stratalog_node.volume.volume_node import VolumeNode
from stratalog_sim.product.machine import Process
from stratalog_sim.product.meta_host import MetaLink
from stratalog_sim.product.network import Socket
from stratalog_sim.product.truth import LAYOUT
from stratalog_sim.product.world import Host, ProductWorld

_PORT = 9_093
_AGAIN_S = 0.5


class Volumes:
    """At most one process reads a directory."""

    def __init__(self, world: ProductWorld) -> None:
        self._world = world
        self._running: dict[int, Process] = {}
        self.is_wanted: dict[int, None] = {}
        """Nodes whose directories are to be read: whoever runs such a process starts it again."""

    @property
    def read(self) -> set[int]:
        return set(self._running)

    def begin(self, node_id: int) -> None:
        host = self._world.hosts[node_id]
        self.is_wanted[node_id] = None
        if node_id in self._running:
            return
        if host.process is not None:
            self._world.after(_AGAIN_S, self.begin, node_id)  # a node runs there by mistake
            return
        process = self._running[node_id] = Process(host.machine)
        self._world.other_processes.append(process)
        self._world.spawn(process, self._run(host, process))

    async def _run(self, host: Host, process: Process) -> None:
        world, node_id = self._world, host.node_id
        settings = ProcessSettings(node_id=node_id)
        link = MetaLink(world.meta, host.machine)
        volume = VolumeNode(settings, LAYOUT.root, host.machine.host, _PORT, link, node_id=node_id)
        try:
            await volume.start()
        except StratalogError as error:
            world.say(f"the directory of node {node_id} cannot be read yet: {error}")
            self.kill(node_id, down_s=_AGAIN_S)
            return
        world.say(f"the directory of node {node_id} is read")
        await volume.is_over.wait()
        world.say(f"the directory of node {node_id}: {volume.why_over}")
        self.kill(node_id, down_s=_AGAIN_S)

    def kill(self, node_id: int, *, down_s: float) -> None:
        process = self._running.pop(node_id, None)
        if process is None:
            return
        self._world.say(f"the process that reads the directory of node {node_id} ends")
        process.is_dead = True
        self._world.kernel.forget(process.machine)
        self._world.network.process_died(process, says_so=True)
        self._world.after(down_s, self.begin, node_id)


async def listen_on(host: str, port: int) -> Socket:
    """In place of the real one."""
    sock = Socket()
    sock.bind((host, port))
    return sock
