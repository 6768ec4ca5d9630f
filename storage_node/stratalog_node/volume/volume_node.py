"""A process that reads a retired node's directory for the other nodes: `stratalog node start --read-only`.

It is not a member: it registers no life, leads, follows and uploads nothing, and writes nothing to the directory. The
mount's record has its address, and the name of its start; when the record names another start, or the mount has ended,
this process ends.
Order of start: read the directory's identity, share its lock, load metadata, bind the address, then register it, once
the mount has begun.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.event_loop.task_set import TaskSet
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.mount_commands import CloseVolume, OpenVolume
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError, Unavailable
from stratalog.model.metadata import Change, MountChanged, MountEnded
from stratalog.model.mounts import Mount, data_set_name
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.settings.choices import PortProtocol
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog.telemetry.http import listen_on
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import MetricRegistry
from stratalog_node.backoff import Backoff
from stratalog_node.disk.further_directories import attach_for_reading
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.threads import DiskThreads
from stratalog_node.identity_file import NodeIdentity
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.catalog.following import follow
from stratalog_node.shards.catalog.lag import CatalogLag
from stratalog_node.volume.directory import read_identity, share_lock
from stratalog_node.volume.listener import VolumeListener
from stratalog_node.volume.sealed_files import SealedFiles

if TYPE_CHECKING:
    from stratalog.tls.identity import TlsIdentity

log = logger(__name__)

_PAUSE_S: Final = 0.5
"""Pause between two checks whether the mount has begun."""


class VolumeNode:
    def __init__(
        self,
        settings: ProcessSettings,
        directory: Path,
        host: str,
        port: int,
        meta: MetaClient,
        *,
        node_id: int | None = None,
        tls: TlsIdentity | None = None,
    ) -> None:
        """`node_id`: the node that must own the directory, if the user named one. `tls`: its certificate; its owner
        keeps it up to date."""
        self._tls = tls
        self._settings = settings
        self._layout = NodeLayout(directory)
        self._node_id = node_id
        self._listen = host, port
        self._meta = meta
        self._start_id = secrets.token_hex(8)
        self._taken = AsyncExitStack()
        self._tasks = TaskSet()
        self.catalog = Catalog(lambda overrides: TopicSettings.resolve(settings, overrides))
        self.metrics = MetricRegistry()
        self.address = ("", 0)
        self.identity: NodeIdentity
        self.files: SealedFiles
        self.is_over = asyncio.Event()
        self.why_over = ""

    async def start(self) -> None:
        """All of it, or nothing. Raises: NotFound, Conflict, InvalidRequest, Unavailable, Corrupt."""
        try:
            await self._start()
        except BaseException:
            await self._taken.aclose()
            raise

    async def _start(self) -> None:
        cluster_id = await self._meta.read_cluster_id()
        self.identity = await asyncio.to_thread(read_identity, self._layout, cluster_id)
        if self._node_id not in (None, self.identity.node_id):
            raise InvalidRequest(
                f"{self._layout.root} is the directory of node {self.identity.node_id}, not of node {self._node_id}"
            )
        lock = share_lock(self._layout.root)
        if lock is not None:
            self._taken.callback(os.close, lock)
        for path, why in (await asyncio.to_thread(attach_for_reading, self._layout)).items():
            log.warning("a data directory of the node cannot be read: its copies are not served", path=path, why=why)
        self.catalog.load(await self._meta.snapshot())
        threads = DiskThreads()
        self._taken.callback(threads.close)
        self.files = SealedFiles(
            self._layout,
            self.identity.node_id,
            cluster_id,
            self.catalog,
            threads,
            self._settings.log_index_cache_bytes,
            lambda: time.monotonic_ns() // 1_000_000,
        )
        self._taken.push_async_callback(self.files.close)
        listener = VolumeListener(self.files.answer, self._is_node, self.files.stats)
        try:
            sock = await listen_on(*self._listen)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {self._listen[0]}:{self._listen[1]}: {error.strerror}; choose another --listen"
            ) from error
        self._taken.callback(sock.close)
        self._taken.push_async_callback(listener.close)
        self.address = (self._listen[0], sock.getsockname()[1])
        await self._listen_at(listener, sock)
        self._taken.push_async_callback(self._tasks.cancel)
        self._tasks.start(follow(self._meta, self.catalog, self._end))
        mount = await self._open()
        self._taken.push_async_callback(self._close_volume)
        self._tasks.start(self._watch_mount())
        self.metrics.add("stratalog_volume", self.files.stats)
        log.info("a retired node's directory is read", mount=mount.name, directory=str(self._layout.root))

    async def _listen_at(self, listener: VolumeListener, sock: socket.socket) -> None:
        tls = self._tls
        if self._settings.security_inter_broker_protocol is PortProtocol.PLAINTEXT:
            await listener.open(sock)
            return
        assert tls is not None, "the settings name a certificate"
        from stratalog.tls.identity import internal_rules  # with a library that plain text does not need

        rules = internal_rules(self._settings)
        assert rules is not None
        await listener.open(sock, lambda: tls.streaming(rules), tls.principal_of)

    async def _open(self) -> Mount:
        """Say where it is read. A mount that the node's retirement begins in a moment is waited for."""
        host, port = self._settings.advertised(self.address)
        command = OpenVolume(self.identity.node_id, self.identity.storage_id, host, port, self._start_id)
        is_told = False
        while True:
            try:
                return await self._meta.perform(command)
            except NotFound:
                if not self._will_be_mounted():
                    raise
            if not is_told:
                log.info("waiting until the mount of this directory begins", node_id=self.identity.node_id)
            is_told = True
            await asyncio.sleep(_PAUSE_S)

    def _will_be_mounted(self) -> bool:
        """The service requests the mount one pass after the release, and again until it has begun."""
        node = self.catalog.node(self.identity.node_id)
        record = None if node is None else node.retirement
        if record is None or (record.mode, record.storage_id) != (RetireMode.VOLUME, self.identity.storage_id):
            return False
        return record.step in (RetireStep.RELEASE, RetireStep.MOUNT)

    def _is_node(self, node_id: int, token: int) -> bool:
        node = self.catalog.node(node_id)
        return node is not None and token > 0 and node.token == token

    async def _watch_mount(self) -> None:
        """Whatever the mount was before this process said where it reads does not end it."""
        lag, backoff = CatalogLag(self.catalog, self._meta), Backoff()
        while not await lag.catch_up():
            await backoff.pause()
        self.catalog.on_change(self._on_change)
        mount = self.catalog.mount_of(self.identity.node_id)
        if mount is not None and mount.volume is None:  # the one that it opened ended, and another began
            self._has_ended()
        self._judge()

    def _on_change(self, change: Change) -> None:
        name = data_set_name(self.identity.node_id)
        match change:
            case MountEnded(ended) if ended == name:  # another may have begun under the name
                self._has_ended()
            case MountChanged(mount) if mount.name == name:
                self._judge()
            case _:
                pass

    def _judge(self) -> None:
        mount = self.catalog.mount_of(self.identity.node_id)
        if mount is None:
            self._has_ended()
        elif mount.volume is not None and mount.volume.start_id != self._start_id:
            self._end(f"another process reads this directory now, at {mount.volume.host}:{mount.volume.port}")

    def _has_ended(self) -> None:
        self._end(f"mount {data_set_name(self.identity.node_id)} has ended: this directory is not read any more")

    def _end(self, why: str) -> None:
        if not self.is_over.is_set():
            log.error("this process must stop", why=why)
        self.why_over = self.why_over or why
        self.is_over.set()

    def readiness(self) -> dict[str, str]:
        """What keeps it from being ready, by name."""
        return {"mount": self.why_over} if self.why_over else {}

    async def _close_volume(self) -> None:
        """Report that it stops. A service that does not answer learns it from the mount's holder."""
        try:
            async with asyncio.timeout(1.0):
                await self._meta.perform(CloseVolume(self.identity.node_id, self._start_id))
        except (StratalogError, TimeoutError) as error:
            log.info("the meta service did not hear that this process stops", error=str(error))

    async def close(self) -> None:
        await self._taken.aclose()
