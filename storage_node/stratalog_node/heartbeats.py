"""Tells the meta service that this life of the node lives, and hears when it is over.

Each heartbeat grants the node one lease from its arrival, so it is over only for a node that the service did not hear
for so long. `heard_ms` says when it was heard last, by this process's clock: what rests on the service being there asks
for that. A service that keeps no leases (the one inside this process) is asked once.

Lives on the event loop, as one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from stratalog.meta_api.client import CommandTaker, LifeListener
from stratalog.model.commands import RegisterNode
from stratalog.model.errors import Conflict, Fenced, StratalogError
from stratalog.model.metadata import Heartbeat, Life, Registration, Vitals
from stratalog.telemetry.logs import logger

PER_LEASE: Final = 4
LONGEST_WAIT_S: Final = 15.0
"""So long a node on a new disk waits for the lease of its earlier life: several leases, as they are by default."""
_FIRST_PAUSE_S: Final = 0.25
"""Before a lease is known."""
_UNTOLD_LEASE_MS: Final = 500
_GOODBYE_S: Final = 1.0

log = logger(__name__)


async def register(meta: CommandTaker, command: RegisterNode) -> Registration:
    """Begin a life. While the lease of an earlier one on another disk lasts, wait for its end.

    Raises: Conflict when that life goes on: its process runs.
    """
    until = asyncio.get_running_loop().time() + LONGEST_WAIT_S
    while True:
        try:
            return await meta.perform(command)
        except Conflict as error:
            if asyncio.get_running_loop().time() > until:
                raise
            log.info("waiting for the end of an earlier life", error=str(error))
        await asyncio.sleep(_FIRST_PAUSE_S)


class Heartbeats:
    def __init__(
        self,
        meta: LifeListener,
        life: Life,
        monotonic_ms: Callable[[], int],
        on_fenced: Callable[[str], None],
        has_room: Callable[[], bool] = lambda: True,
        vitals: Callable[[], Vitals | None] = lambda: None,
    ) -> None:
        """`on_fenced` is told once, in words, that this life is over: the process must stop. `has_room`: whether the
        disk has it for more segments."""
        self._vitals = vitals
        self._meta = meta
        self._life = life
        self._monotonic_ms = monotonic_ms
        self._on_fenced = on_fenced
        self._has_room = has_room
        self._lease_ms: int | None = None
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        self.heard_ms = monotonic_ms()
        """Up to when it is sure that the service had heard of this life: it has just registered."""

    @property
    def untaken_ms(self) -> int:
        """From when the service has heard this node, nobody takes for so long what it leads; 0: ever. Half a lease:
        no more is left to one whose connection was cut, and who was cut off does not know whether it closed there. What
        a lease is, the service says with its first answer: until then it is taken for short."""
        return (_UNTOLD_LEASE_MS if self._lease_ms is None else self._lease_ms) // 2

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="heartbeats")

    async def close(self) -> None:
        """Say that the node stops in order. A service that does not answer waits for the end of the lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease_ms and not self._is_over:
            try:
                async with asyncio.timeout(_GOODBYE_S):
                    await self._meta.heartbeat(Heartbeat(self._life, is_last=True))
            except (StratalogError, TimeoutError) as error:
                log.info("goodbye not heard", error=str(error))

    async def _run(self) -> None:
        is_heard = True
        while self._lease_ms != 0:
            asked_ms = self._monotonic_ms()
            try:
                heard = await self._meta.heartbeat(
                    Heartbeat(self._life, has_room=self._has_room(), vitals=self._vitals())
                )
            except Fenced as error:
                self._is_over = True
                log.error("this life of the node is over", error=str(error))
                self._on_fenced(str(error))
                return
            except StratalogError as error:
                if is_heard:
                    log.warning("the meta service does not hear this node", error=str(error))
                is_heard = False
            except Exception:  # a fault in one heartbeat must not end them all (F48)
                log.exception("a heartbeat failed")
            else:
                if not is_heard:
                    log.info("the meta service hears this node again")
                is_heard = True
                self.heard_ms, self._lease_ms = asked_ms, heard.lease_ms
            await asyncio.sleep(self._pause_s(asked_ms))

    def _pause_s(self, asked_ms: int) -> float:
        """So that heartbeats leave a fixed time apart, however long answers take."""
        if self._lease_ms is None:
            return _FIRST_PAUSE_S
        return max(0.0, (asked_ms + self._lease_ms / PER_LEASE - self._monotonic_ms()) / 1_000)
