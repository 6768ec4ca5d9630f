"""Holds the mounts that the meta service gives to a node, and sees first that they can be read. Stands in for
`storage_node/stratalog_node/mounts` and, for what a retired node left in the bucket,
`tier/sweep/expired_writers.py`."""

from __future__ import annotations

from stratalog.model.commands import table_commands as commands
from stratalog.model.commands.mount_commands import DoubtMount, ReleaseMount, TakeMount
from stratalog.model.errors import Fenced, Rejected, StratalogError, Unavailable
from stratalog.model.metadata import Life
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.segment import RemoteState, Segment
from stratalog_sim.environment.process import Ask, Sleep, Task
from stratalog_sim.environment.store import Get, StoredManifest
from stratalog_sim.node.serving import PeerRead
from stratalog_sim.node.shell import NodeShell

_POLL_MS = 120
_TRIES = 4
_DOUBTED_AFTER = 2
_SWEEPER = "orphan-sweep"
_EVERY_LIFE = tuple("0123456789abcdef")


class Mounting:
    def __init__(self, node: NodeShell) -> None:
        self._node = node
        self._failures: dict[tuple[str, int], int] = {}
        """By name and token: how often it could not be read."""

    def run(self) -> Task:
        """Without an end."""
        while True:
            yield Sleep(_POLL_MS)
            for mount in self._held():
                if mount.state is not MountState.SERVING:
                    yield from self._take(mount)
                elif mount.mode is MountMode.VOLUME:
                    yield from self._probe_again(mount)

    def _held(self) -> list[Mount]:
        life, mounts = self._node.life, self._node.view.mounts.values()
        return [one for one in mounts if one.holder is not None and Life(one.holder, one.holder_epoch) == life]

    def _take(self, mount: Mount) -> Task:
        at = mount.name, mount.token
        try:
            yield from self._probe(mount)
            yield self._node.ask_meta(TakeMount(mount.name, mount.token))
            self._failures.pop(at, None)
        except Fenced:
            self._failures.pop(at, None)
        except StratalogError as error:
            count = self._failures[at] = self._failures.get(at, 0) + 1
            self._node.tell(f"cannot read mount {mount.name} under {mount.token} yet:", error)
            if count >= _TRIES and mount.mode is not MountMode.VOLUME:
                yield from self._say(ReleaseMount(mount.name, mount.token))
                self._failures.pop(at, None)

    def _probe_again(self, mount: Mount) -> Task:
        """At a directory that answered before."""
        at = mount.name, mount.token
        try:
            yield from self._probe(mount)
            self._failures.pop(at, None)
        except StratalogError:
            count = self._failures[at] = self._failures.get(at, 0) + 1
            if count >= _DOUBTED_AFTER:
                yield from self._say(DoubtMount(mount.name, mount.token))

    def _say(self, command: DoubtMount | ReleaseMount) -> Task:
        try:
            yield self._node.ask_meta(command)
        except StratalogError as refusal:
            self._node.tell("was not heard:", command, refusal)

    # Whether it can be read -----------------------------------------------------------------------------------------
    def _probe(self, mount: Mount) -> Task:
        """The oldest and the newest segment. Raises what keeps them from being read."""
        if mount.mode is MountMode.VOLUME and mount.volume is None:
            raise Unavailable(f"the directory of node {mount.node_id} is not read now")
        if mount.mode is MountMode.OFFLOAD and not self._node.has_store:
            return  # nothing of it is in a bucket, so there is nothing to look at
        shards = self._node.view.shards.values()
        found = [one for shard in shards for one in shard.segments.values() if _is_of(one, mount)]
        found.sort(key=lambda one: one.seal.sealed_ms if one.seal is not None else 0)
        for segment in [*found[:1], *found[1:][-1:]]:
            yield from (self._read_volume if mount.mode is MountMode.VOLUME else self._read_store)(mount, segment)

    def _read_store(self, _mount: Mount, segment: Segment) -> Task:
        manifest = yield Ask("store", Get(segment.remote.manifest_key or ""))
        if isinstance(manifest, StoredManifest) and manifest.parts:
            yield Ask("store", Get(manifest.parts[-1]))

    def _read_volume(self, mount: Mount, segment: Segment) -> Task:
        assert segment.seal is not None and mount.volume is not None
        if segment.seal.size_bytes:
            batches = yield Ask(mount.volume.host, PeerRead(segment.key, segment.seal.end_offset - 1), 200)
            if not batches:
                raise Unavailable(f"{segment.key} is not served")

    # What a node without a lease left -------------------------------------------------------------------------------
    def last_epoch(self, owner: int):  # type: ignore[no-untyped-def]  # a task with a result
        """Under which that node may have written last. None while the lease of its lock lasts, or its mount is
        another's, or is not served yet."""
        node, mount = self._node, self._node.view.mount_of(owner)
        try:
            if mount is None:
                name = f"tier/{owner}"
                lock = yield node.ask_meta(commands.AcquireLock(name, _SWEEPER, 1, _EVERY_LIFE))
                return lock.epoch - 1
            if mount.state is not MountState.SERVING and mount.mode is not MountMode.VOLUME:
                return None
            ask = TakeMount if mount.state is MountState.SERVING else DoubtMount
            held = yield node.ask_meta(ask(mount.name, mount.token))
            return held.token - 1
        except Rejected:
            return None


def _is_of(segment: Segment, mount: Mount) -> bool:
    if segment.seal is None:
        return False
    if mount.mode is MountMode.VOLUME:
        return mount.node_id in segment.local_nodes
    return mount.node_id in segment.seal.replicas and segment.remote.state is RemoteState.COMPLETE
