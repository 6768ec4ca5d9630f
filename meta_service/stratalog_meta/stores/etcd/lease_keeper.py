"""Renews an etcd lease from a thread of its own, so that a busy event loop does not cost it.

The thread continues only while the loop has turned within `LONGEST_STILL_S`: a process whose loop hangs gives its lease
up, and so does a process that is stopped as a whole. One call at a time, member by member; a member that does not
answer costs an attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc

from stratalog.model.errors import StratalogError
from stratalog.telemetry.logs import logger
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.client import EtcdClient

LONGEST_STILL_S: Final = 5.0
"""A loop that has not turned for this long counts as hanging forever."""
RENEWALS_PER_LEASE: Final = 4
_AGAIN_S: Final = 0.05
"""After an attempt that failed: time is short then."""
_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"

_log = logger(__name__)


class LeaseKeeper:
    """Keeps one lease until `stop`, or until it is gone. `until` may be read from anywhere."""

    def __init__(
        self,
        client: EtcdClient,
        lease: int,
        lease_s: float,
        until: float,
        clock: Callable[[], float],
        on_gone: Callable[[str], None],
        *,
        longest_still_s: float = LONGEST_STILL_S,
    ) -> None:
        """`until`: the end of the lease by `clock`, counted from before the request that renewed it. `on_gone` is
        called on the event loop, once, with the reason."""
        self.until = until
        self._client = client
        self._access = client.access
        self._lease = lease
        self._lease_s = lease_s
        self._clock = clock
        self._on_gone = on_gone
        self._longest_still_s = longest_still_s
        self._loop = asyncio.get_running_loop()
        self._turned = clock()
        self._stopping = threading.Event()
        self._turning: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._turning = self._loop.create_task(self._note_loop_turns(), name="meta-lease-turns")
        threading.Thread(target=self._run, name="meta-lease", daemon=True).start()

    def stop(self) -> None:
        """The lease is renewed no more; an answer that is under way counts for nothing."""
        self._stopping.set()
        if self._turning is not None:
            self._turning.cancel()

    async def _note_loop_turns(self) -> None:
        while True:
            self._turned = self._clock()
            await asyncio.sleep(self._lease_s / RENEWALS_PER_LEASE)

    # In the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        channels: dict[int, grpc.Channel] = {}
        try:
            why = self._keep(channels)
        except Exception as error:  # a leadership that never ends would be the worst outcome
            why = f"its lease is kept no more: {error!r}"
            _log.exception("keeper of the etcd lease failed")
        finally:
            for channel in channels.values():
                channel.close()
        if not self._stopping.is_set():
            with contextlib.suppress(RuntimeError):  # the loop has ended before
                self._loop.call_soon_threadsafe(self._on_gone, why)

    def _keep(self, channels: dict[int, grpc.Channel]) -> str:
        at, pause_s, is_late = 0, 0.0, False  # at once: of a lease that waited for its turn little may be left
        while not self._stopping.wait(pause_s):
            asked = self._clock()
            if asked - self._turned > max(self._longest_still_s, self._lease_s):
                return "its event loop is stuck"
            if asked > self.until + self._grace_s:
                return "etcd did not renew its lease in time"
            if asked > self.until and not is_late:
                is_late = True
                _log.warning("etcd lease is overdue for renewal", lease_s=self._lease_s)
            members: Sequence[str] = self._client.endpoints
            try:
                life_s = self._ask(channels, at, self._lease_s / RENEWALS_PER_LEASE)
            except (grpc.RpcError, StratalogError) as error:
                _log.info("etcd lease was not renewed", member=members[at], error=str(_words(error)))
                at, pause_s = (at + 1) % len(members), _AGAIN_S
                continue
            if life_s <= 0:
                return "its lease has ended"
            self.until, pause_s, is_late = asked + life_s, self._lease_s / RENEWALS_PER_LEASE, False
        return "it stops"

    @property
    def _grace_s(self) -> float:
        """During an election etcd answers no request, and no lease ends: this process does not lead meanwhile, and
        loses the lead after this time."""
        return 2 * self._lease_s

    def _ask(self, channels: dict[int, grpc.Channel], at: int, timeout_s: float) -> int:
        access = self._client.access
        if access is not self._access:  # its certificate was renewed
            self._access = access
            while channels:
                channels.popitem()[1].close()
        channel = channels.get(at)
        if channel is None:
            channel = channels[at] = access.blocking_channel(self._client.endpoints[at])
        call: Any = channel.stream_stream(
            _KEEP_ALIVE,
            request_serializer=rpc.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=rpc.LeaseKeepAliveResponse.FromString,
        )
        answers = call(
            iter((rpc.LeaseKeepAliveRequest(ID=self._lease),)), timeout=timeout_s, metadata=self._client.call_metadata
        )
        try:
            for answer in answers:
                return int(answer.TTL)
        finally:
            answers.cancel()
        raise grpc.RpcError("the stream ended without an answer")


def _words(error: Exception) -> str:
    details = getattr(error, "details", None)
    return str(details() if callable(details) else error)
