"""Holds the mounts that the meta service gives to this node: checks that the mounted data can be read, then reports it.

The service chose this node and gave it the token. Until the node has read the oldest and the newest segment, the mount
is TAKING, and nothing of the retired node's data is changed. Data that cannot be read is tried again after increasing
pauses. A mount of data in the object store is given up after several attempts, because another node may reach it. A
directory that another process serves is checked regularly while it is mounted, and reported as doubtful when it does
not answer.
The workers of the node's own data also do the background work of a mount: purges (`tier/sweep/janitor.py`), orphans and
bundles (`tier/sweep/expired_writers.py`), each under the token. Each mount is checked by its own task, a bounded number
at a time, so that a few dead machines do not delay the other mounts; N of them delay each check by the time of N
checks, divided by that number. Lives on the event loop.
Cost: a check of each segment when a mount is taken, and two listings and two small reads of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.backoff import longest_pause
from stratalog.meta_api.node_client import NodeMetaClient
from stratalog.model.commands.mount_commands import DoubtMount, ReleaseMount, TakeMount
from stratalog.model.errors import Fenced, StratalogError
from stratalog.model.metadata import Change, Life, MountChanged, MountEnded
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter, gauge
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.peer_reads import MOST_LOOKS, PeerBusy

log = logger(__name__)

_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 5_000
_TRIES: Final = 8
"""After this many attempts another node is requested."""
_VOLUME_POLL_S: Final = 2.0
_AT_ONCE: Final = MOST_LOOKS
"""Mounts that are looked at: those of dead machines take as long as a call may, and others wait behind them."""
_DOUBTED_AFTER: Final = 2
"""Consecutive checks that failed."""


_Place: TypeAlias = tuple[str, int]
"""Name and token of a mount."""


@dataclass(slots=True)
class MountStats:
    """What this node does as the holder of mounts. Register as `stratalog_mounts`."""

    held: int = gauge("Mounts that this node holds and serves.")
    waiting: int = gauge("Mounts that this node is to hold and cannot read yet; its log says why.")
    taken: int = counter("Mounts that this node began to serve.")
    given_up: int = counter("Mounts that this node gave up, for it could not read what is mounted.")


def _has_work(mount: Mount) -> bool:
    """What is served from the object store needs no look."""
    return mount.state is not MountState.SERVING or mount.mode is MountMode.VOLUME


def _start_of(mount: Mount) -> str | None:
    return None if mount.volume is None else mount.volume.start_id


class MountHolding:
    def __init__(
        self,
        meta: NodeMetaClient,
        catalog: Catalog,
        probe: Callable[[Mount], Awaitable[None]],
        call_timeout_ms: int,
        tries: int = _TRIES,
    ) -> None:
        """`probe` raises what keeps a mount from being read."""
        self._meta = meta
        self._catalog = catalog
        self._probe = probe
        self._call_timeout_s = call_timeout_ms / 1_000
        self._tries = tries
        self._failures: dict[_Place, int] = {}
        """How often it could not be read."""
        self._in_vain: dict[_Place, tuple[str, int]] = {}
        """The start of the process that should serve the directory, and how many consecutive checks of it failed."""
        self._news: dict[_Place, asyncio.Event] = {}
        """For each mount that is checked: set when it changed."""
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._tasks = TaskSet()
        self._changed = asyncio.Event()
        self.stats = MountStats()
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, MountChanged | MountEnded):
            name = change.mount.name if isinstance(change, MountChanged) else change.name
            for at, news in self._news.items():
                if at[0] == name:
                    news.set()
            self._changed.set()

    def held(self) -> Sequence[Mount]:
        """The mounts that this life of the node was given."""
        return [mount for mount in self._catalog.mounts() if self._is_held(mount)]

    def _is_held(self, mount: Mount) -> bool:
        return mount.holder is not None and Life(mount.holder, mount.holder_epoch) == self._meta.life

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._changed.clear()
                for mount in self.held():
                    at = (mount.name, mount.token)
                    if _has_work(mount) and at not in self._news:
                        self._news[at] = asyncio.Event()
                        self._tasks.start(self._hold(at), name=f"mount-{mount.name}")
                self.stats.held = sum(mount.state is MountState.SERVING for mount in self.held())
                await self._changed.wait()
        finally:
            await self._tasks.cancel()

    async def _hold(self, at: _Place) -> None:
        """Look at one mount again and again for as long as it is this node's, and there is something to do for it."""
        news = self._news[at]
        try:
            while (mount := self._mount(at)) is not None and _has_work(mount):
                news.clear()
                async with self._places:
                    await self._check(mount)
                self.stats.waiting = len(self._failures)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s(mount)):
                        await news.wait()
        finally:
            del self._news[at]
            self._failures.pop(at, None)
            self._in_vain.pop(at, None)
            self.stats.waiting = len(self._failures)

    def _mount(self, at: _Place) -> Mount | None:
        mount = self._catalog.mount(at[0])
        return mount if mount is not None and mount.token == at[1] and self._is_held(mount) else None

    def _pause_s(self, mount: Mount) -> float | None:
        """None: until something changes."""
        count = self._failures.get((mount.name, mount.token))
        pauses = [] if count is None else [longest_pause(count, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS) / 1_000]
        if mount.mode is MountMode.VOLUME:
            pauses.append(_VOLUME_POLL_S)
        return min(pauses, default=None)

    async def _check(self, mount: Mount) -> None:
        try:
            await (self._probe_again if mount.state is MountState.SERVING else self._take_over)(mount)
        except Exception:  # a fault with one mount must not keep it from being looked at again (F48)
            log.exception("a mount could not be checked", mount=mount.name)

    async def _probe_again(self, mount: Mount) -> None:
        """At a directory that answered before."""
        at = (mount.name, mount.token)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._probe(mount)
            self._failures.pop(at, None)
        except PeerBusy:
            return  # it answers, and checks a file again that was put there
        except (StratalogError, TimeoutError) as error:
            count = self._failures[at] = self._failures.get(at, 0) + 1
            if count < _DOUBTED_AFTER:
                return
            log.warning("mounted data cannot be read any more", mount=mount.name, error=str(error))
            await self._send(DoubtMount(mount.name, mount.token, _start_of(mount)))

    async def _send(self, command: DoubtMount | ReleaseMount) -> bool:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._meta.perform(command)
        except (StratalogError, TimeoutError) as refusal:
            log.info("the meta service did not accept a report about a mount", mount=command.name, error=str(refusal))
            return False
        return True

    async def _take_over(self, mount: Mount) -> None:
        at = (mount.name, mount.token)
        is_read = False
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._probe(mount)
                is_read = True
                await self._meta.perform(TakeMount(mount.name, mount.token))
        except Fenced:
            log.info("mount is held by another node by now", mount=mount.name, fencing_epoch=mount.token)
            self._failures.pop(at, None)
        except (StratalogError, TimeoutError) as error:
            # A process that first checks its files answers late, and a report that does not reach the service proves
            # nothing about a directory.
            self._note_asked(mount, in_vain=not is_read and not isinstance(error, PeerBusy))
            await self._failed(mount, error)
        except Exception as error:  # a fault with one mount must not keep the others from being served (F48)
            log.exception("a mount could not be taken over", mount=mount.name)
            await self._failed(mount, error)
        else:
            self._failures.pop(at, None)
            self._in_vain.pop(at, None)
            self.stats.taken += 1
            log.info("mount is served by this node", mount=mount.name, mode=mount.mode, fencing_epoch=mount.token)

    def _note_asked(self, mount: Mount, *, in_vain: bool) -> None:
        at, start_id = (mount.name, mount.token), _start_of(mount)
        before, count = self._in_vain.pop(at, ("", 0))
        if in_vain and start_id is not None:
            self._in_vain[at] = start_id, 1 + (count if before == start_id else 0)

    async def _failed(self, mount: Mount, error: Exception) -> None:
        at = (mount.name, mount.token)
        count = self._failures[at] = self._failures.get(at, 0) + 1
        words = str(error) or type(error).__name__
        if count == 1:
            log.warning("mounted data cannot be read yet", mount=mount.name, fencing_epoch=mount.token, error=words)
        if mount.mode is MountMode.VOLUME:
            asked_in_vain = self._in_vain.get(at, ("", 0))[1]
            if asked_in_vain >= _DOUBTED_AFTER and not mount.is_doubted:
                await self._send(DoubtMount(mount.name, mount.token, _start_of(mount)))
            return
        if count < self._tries:
            return
        log.warning(
            "mount is given up; another node will try", mount=mount.name, fencing_epoch=mount.token, error=words
        )
        if await self._send(ReleaseMount(mount.name, mount.token)):
            self.stats.given_up += 1
            self._failures.pop(at, None)
