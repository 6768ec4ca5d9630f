"""One instance of the meta service among several: it campaigns, serves while it leads, and otherwise names the leader.
Each time it begins to lead it makes a new service over the store as it is then, so nothing that it knew before counts.
A service that refuses changes permanently ends the candidacy. An instance that does not lead answers with the leader's
address (`NotLeader`); nothing is forwarded, so every answer comes from the leader, over one connection.

Lives on one event loop, as one task. The store's own compare keeps two leaders from writing, never this file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import NotLeader, StratalogError, Unavailable
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter
from stratalog_meta.service import MetaService
from stratalog_meta.stores.leadership import Leadership
from stratalog_meta.stores.meta_store import MetaStore

PAUSE_S: Final = 0.5
"""Between two candidacies, so that a store that fails at once is not asked all the time."""
_POLL_S: Final = 1.0

_log = logger(__name__)


@dataclass(slots=True)
class LeaderStats:
    """`registry.add("stratalog_meta_leader", instance.stats)`."""

    won: int = counter("Times that this instance began to lead.")
    failed: int = counter("Times that this instance won the leadership but could not open the store.")


@dataclass(frozen=True, slots=True)
class Candidacy:
    """One try to lead: the leadership, and the store that may be written under it."""

    leadership: Leadership
    store: MetaStore


class MetaInstance:
    """Serves by whatever candidacy is under way; its owner starts and closes it."""

    def __init__(
        self,
        candidacy: Callable[[], Candidacy],
        make_service: Callable[[MetaStore], MetaService],
        *,
        pause_s: float = PAUSE_S,
        scheme: str = "http",
    ) -> None:
        """Both are called once for each candidacy. `scheme`: of the URLs of all instances."""
        self._scheme = scheme
        self._candidacy = candidacy
        self._make_service = make_service
        self._pause_s = pause_s
        self._led: tuple[Leadership, MetaService] | None = None
        self._standing: Leadership | None = None
        self._trouble: str | None = None
        self._task: asyncio.Task[None] | None = None
        self.stats = LeaderStats()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="meta-instance")

    async def close(self) -> None:
        """Answer what was asked before, then give the lead up, so that another takes it at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Serving ----------------------------------------------------------------------------------------------------
    @property
    def is_leading(self) -> bool:
        """Not while its lease is over by its own clock, though etcd may still renew it."""
        return self._led is not None and self._led[0].is_leading

    def leading(self) -> MetaService:
        """The service, while this instance leads. Raises NotLeader."""
        if self._led is not None and self.is_leading:
            return self._led[1]
        leader = self._leader_address()
        if leader is None:
            why = self._trouble or "no instance leads the metadata now, as far as this instance knows"
            raise NotLeader(f"{why}: ask again in a moment")
        url = f"{self._scheme}://{leader}"
        raise NotLeader(f"another instance leads the metadata: ask {url}", url)

    @property
    def why_no_changes(self) -> str | None:
        """Why no client of this instance can change anything, here or where it is redirected; None when it can."""
        try:
            return self.leading().why_no_changes
        except NotLeader as error:
            return None if error.leader is not None else str(error)

    def _leader_address(self) -> str | None:
        """Of another instance; never this one, which would be a circle."""
        standing = self._standing
        return None if standing is None or self._led is not None else standing.leader_address()

    # The task ---------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                await self._campaign()
            except Unavailable as error:
                self._trouble = str(error)
                _log.info("this instance does not lead any more", error=str(error))
            except StratalogError as error:
                self._trouble = str(error)
                _log.error("this instance cannot lead", error=str(error))
            except Exception as error:  # a bug: another instance may do better, and this one later (F48)
                self._trouble = f"this instance failed with an internal error ({error!r})"
                _log.exception("this instance failed with an internal error")
            await asyncio.sleep(self._pause_s)

    async def _campaign(self) -> None:
        candidacy = self._candidacy()
        leadership = self._standing = candidacy.leadership
        async with contextlib.AsyncExitStack() as held:
            held.push_async_callback(leadership.resign)
            await leadership.campaign()
            service = self._make_service(candidacy.store)
            try:
                await service.start(is_asked=lambda: leadership.is_leading)
            except BaseException:
                self.stats.failed += 1
                raise
            held.push_async_callback(service.close)
            held.callback(service.end_watches)
            held.callback(self._stop_serving)
            self._led, self._trouble = (leadership, service), None
            self.stats.won += 1
            _log.info("this instance leads", version=await service.read_version())
            while not leadership.lost.is_set() and not service.is_broken:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await leadership.lost.wait()

    def _stop_serving(self) -> None:
        self._led = None
