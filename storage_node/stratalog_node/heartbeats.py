"""Reports to the meta service that this life of the node is running, and detects its end.

Each heartbeat grants the node one lease from its arrival, so the node's life ends only if the service did not hear from
it for a lease. `heard_ms` says when the service last heard it, by this process's clock, for decisions that need the
service to be reachable. Decisions that need this node not to be replaced use `sure_ms`: a node that counted as dead is
heard again as soon as it runs, and only the metadata show what was taken from it meanwhile. A service that keeps no
leases (the one inside this process) is asked once.

A node that leads thousands of shards may keep its event loop busy for longer than a lease, when all of them are written
to for the first time or when another node has died. If the service then counted it as dead, other nodes would get its
shards on top of their own work, and fall behind in turn. So heartbeats to a remote service come from a thread with a
loop of its own. The node's loop notes their content; when it has not turned for `stalled_ms`, they stop, and other
nodes take over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from stratalog.meta_api.client import CommandTaker, LifeListener
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.errors import Conflict, Fenced, StratalogError
from stratalog.model.metadata import Heartbeat, Life, Registration, Vitals
from stratalog.telemetry.logs import logger

PER_LEASE: Final = 4
LONGEST_WAIT_S: Final = 15.0
"""So long a node in another directory waits for the lease of its earlier life: several leases by default."""
_FIRST_PAUSE_S: Final = 0.25
"""Before a lease is known."""
_UNTOLD_LEASE_MS: Final = 500
_GOODBYE_S: Final = 1.0
_STALLED_LEASES: Final = 5
_STALLED_LEAST_MS: Final = 10_000
_JOIN_S: Final = 5.0

log = logger(__name__)


async def register(meta: CommandTaker, command: RegisterNode) -> Registration:
    """Begin a life. While the lease of an earlier one in another directory lasts, wait for its end.

    Raises: Conflict if that life continues: its process runs.
    """
    until = asyncio.get_running_loop().time() + LONGEST_WAIT_S
    is_told = False
    while True:
        try:
            return await meta.perform(command)
        except Conflict as error:
            if asyncio.get_running_loop().time() > until:
                raise
            if not is_told:  # once: it is asked several times a second, and each answer differs by some milliseconds
                is_told = True
                log.info("waiting for the end of an earlier life", error=str(error), at_most_s=LONGEST_WAIT_S)
        await asyncio.sleep(_FIRST_PAUSE_S)


class HeartbeatClient(LifeListener, Protocol):
    """A client of the service for one event loop, which its taker closes."""

    async def close(self) -> None: ...


class ShownMetadata(Protocol):
    """The node's catalog, as far as heartbeats need it."""

    @property
    def version(self) -> int: ...

    def is_alive(self, node_id: int) -> bool: ...


class Heartbeats:
    """`start` and `close` on the node's event loop."""

    def __init__(
        self,
        meta: LifeListener,
        life: Life,
        monotonic_ms: Callable[[], int],
        on_fenced: Callable[[str], None],
        has_room: Callable[[], bool] = lambda: True,
        vitals: Callable[[], Vitals | None] = lambda: None,
        heartbeat_client: Callable[[], HeartbeatClient] | None = None,
        shown: ShownMetadata | None = None,
        can_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_fenced` is called once, with the reason, when this life is over: the process must stop. `has_room`:
        whether the disk has room for more segments. `can_write`: whether the disk makes progress. `heartbeat_client`
        creates another client of the service, for a loop beside the node's; without it heartbeats are sent from the
        node's own loop. `shown`: the node's present metadata; None if they are never behind."""
        self._vitals = vitals
        self._heartbeat_client = heartbeat_client
        self._meta = meta
        self._life = life
        self._monotonic_ms = monotonic_ms
        self._on_fenced = on_fenced
        self._has_room = has_room
        self._can_write = can_write
        self._shown = shown
        self._lease_ms: int | None = None
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()
        self._beside: tuple[asyncio.AbstractEventLoop, asyncio.Task[object]] | None = None
        """The loop of the thread and what runs on it, once it does."""
        self._noted = Heartbeat(life)
        self._turned_ms = monotonic_ms()
        """When the node's loop was seen to turn last."""
        self._is_stalled = False
        self.heard_ms = monotonic_ms()
        """Up to when it is sure that the service had heard of this life: it has just registered."""
        self._sure_ms = self.heard_ms
        self._answered = self._awaited = (self.heard_ms, 0)
        """The newest heartbeat, and the one whose metadata are waited for: when each was sent, and the newest version
        when it was answered."""

    @property
    def sure_ms(self) -> int:
        """Up to when no other node is known to have taken over what this node leads, according to its metadata. On the
        node's loop."""
        for _ in range(2):  # what was waited for, then the newest
            if self._is_shown(self._awaited[1]):
                self._sure_ms, self._awaited = self._awaited[0], self._answered
        return self._sure_ms

    def _is_shown(self, version: int) -> bool:
        return self._shown is None or (self._shown.version >= version and self._shown.is_alive(self._life.node_id))

    @property
    def takeover_delay_ms(self) -> int:
        """How long from `sure_ms` on no other node takes over what this node leads; 0: forever. Half a lease: when the
        connection was cut, this node does not know at which end, and may have no more than that left. The service
        states the lease with its first answer; until then a short one is assumed."""
        return (_UNTOLD_LEASE_MS if self._lease_ms is None else self._lease_ms) // 2

    @property
    def stalled_ms(self) -> int:
        """If the node's loop has not turned for this long, it counts as hanging and not as busy."""
        return max(_STALLED_LEAST_MS, _STALLED_LEASES * (self._lease_ms or 0))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._heartbeat_client is None:
            self._task = loop.create_task(self._run(self._meta, self._said_now, self._on_fenced), name="heartbeats")
            return
        self._note()
        self._task = loop.create_task(self._keep_noted(), name="heartbeats-noted")
        self._thread = threading.Thread(
            target=self._run_beside, args=(self._heartbeat_client, loop), name="heartbeats", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        """Say that the node stops in order. A service that does not answer waits for the end of the lease."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._thread is not None:
            self._is_closing.set()
            if (beside := self._beside) is not None:
                with suppress(RuntimeError):  # it has just ended by itself
                    beside[0].call_soon_threadsafe(beside[1].cancel)
            await asyncio.to_thread(self._thread.join, _JOIN_S)
        if self._lease_ms and not self._is_over:
            try:
                async with asyncio.timeout(_GOODBYE_S):
                    await self._meta.heartbeat(Heartbeat(self._life, is_last=True))
            except (StratalogError, TimeoutError) as error:
                log.info("the meta service did not hear that this process stops", error=str(error))

    # On the node's loop ----------------------------------------------------------------------------------------
    def _said_now(self) -> Heartbeat:
        _ = self.sure_ms  # also while no caller reads it, so that the awaited version is noticed in time
        return Heartbeat(self._life, has_room=self._has_room(), vitals=self._vitals(), can_write=self._can_write())

    def _note(self) -> None:
        try:
            self._noted = self._said_now()
        except Exception:  # what a node tells of itself must not decide whether it lives (F48)
            log.exception("a heartbeat could not be made: the one before is sent again")
        self._turned_ms = self._monotonic_ms()

    async def _keep_noted(self) -> None:
        while self._lease_ms != 0 and not self._is_over:
            self._note()
            await asyncio.sleep(_FIRST_PAUSE_S if self._lease_ms is None else self._lease_ms / PER_LEASE / 1_000)

    # In the thread ---------------------------------------------------------------------------------------------
    def _run_beside(
        self, heartbeat_client: Callable[[], HeartbeatClient], node_loop: asyncio.AbstractEventLoop
    ) -> None:
        def on_fenced(why: str) -> None:
            with suppress(RuntimeError):  # the node's loop is closed: it stops already
                node_loop.call_soon_threadsafe(self._on_fenced, why)

        async def run() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._beside = (asyncio.get_running_loop(), task)
            if self._is_closing.is_set():
                return
            meta = heartbeat_client()
            try:
                await self._run(meta, self._said_if_turning, on_fenced)
            finally:
                await meta.close()

        try:
            asyncio.run(run())
        except asyncio.CancelledError:
            pass
        except Exception as error:
            log.exception("the thread of the heartbeats ended")
            on_fenced(f"no heartbeats are sent any more: {error}")

    def _said_if_turning(self) -> Heartbeat | None:
        stood_ms = self._monotonic_ms() - self._turned_ms
        is_stalled = stood_ms > self.stalled_ms
        if is_stalled and not self._is_stalled:
            log.error("event loop is stuck; heartbeats stopped so that other nodes take over", stood_ms=stood_ms)
        elif self._is_stalled and not is_stalled:
            log.warning("event loop runs again; heartbeats continue")
        self._is_stalled = is_stalled
        return None if is_stalled else self._noted

    # On either -------------------------------------------------------------------------------------------------
    async def _run(
        self, meta: LifeListener, next_heartbeat: Callable[[], Heartbeat | None], on_fenced: Callable[[str], None]
    ) -> None:
        is_heard = True
        while self._lease_ms != 0:
            asked_ms = self._monotonic_ms()
            try:
                if (heartbeat := next_heartbeat()) is not None:
                    heard = await meta.heartbeat(heartbeat)
            except Fenced as error:
                self._is_over = True
                log.error("this life of the node is over", error=str(error))
                on_fenced(str(error))
                return
            except StratalogError as error:
                if is_heard:
                    log.warning("the meta service does not hear this node", error=str(error))
                is_heard = False
            except Exception:  # a fault in one heartbeat must not end them all (F48)
                log.exception("a heartbeat failed")
            else:
                if heartbeat is not None:
                    if not is_heard:
                        log.info("the meta service hears this node again")
                    is_heard = True
                    self.heard_ms, self._lease_ms = asked_ms, heard.lease_ms
                    self._answered = (asked_ms, heard.version)
            await asyncio.sleep(self._pause_s(asked_ms))

    def _pause_s(self, asked_ms: int) -> float:
        """So that heartbeats leave a fixed time apart, however long answers take."""
        if self._lease_ms is None:
            return _FIRST_PAUSE_S
        return max(0.0, (asked_ms + self._lease_ms / PER_LEASE - self._monotonic_ms()) / 1_000)
