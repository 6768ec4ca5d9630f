"""Calls to etcd: one sticky member at a time, the next one when it does not answer.

Every request may be repeated: a change compares what it found before (`outcome`), or does no harm twice. So a lost
answer costs another attempt, and the caller only sees the end of the deadline. The rotation is our own, because gRPC's
round robin keeps choosing a member that hangs.

Lives on one event loop. Cost: one connection per member that was ever tried.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from stratalog.event_loop.task_set import TaskSet
from stratalog.machines.backoff import pause_after
from stratalog.model.errors import Unavailable
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import counter
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.access import EtcdAccess

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class EtcdRetryPolicy:
    """How long to try. Times in seconds."""

    attempt_s: float = 0.6
    """The first attempt; each further one may take twice as long, up to `longest_attempt_s`."""
    longest_attempt_s: float = 4.0
    deadline_s: float = 12.0
    """Over all attempts: several elections of etcd fit."""
    first_pause_s: float = 0.02
    longest_pause_s: float = 0.5


class EtcdRefused(Unavailable):
    """etcd understood the request and will not do it, however often it is asked."""

    is_certain = True
    """False where an attempt before was lost: that one may have happened, or may still."""

    def __init__(self, words: str, code: grpc.StatusCode) -> None:
        super().__init__(words)
        self.code = code


class NoSpace(EtcdRefused):
    """etcd's quota is used up. etcd applied the first write beyond it anyway: read back."""


class EtcdAway(Unavailable):
    """No member answered in time. A change may have happened, or may still."""


@dataclass(slots=True)
class EtcdStats:
    attempts_failed: int = counter("Requests to etcd that a member did not answer; each is sent again.")
    read_back: int = counter("Transactions whose outcome was unknown and was read from etcd.")
    redone: int = counter("Commands larger than a transaction that were finished at a load.")
    compactions: int = counter("Times that old revisions were compacted.")


@dataclass(frozen=True, slots=True)
class _Method(Generic[Q, A]):
    path: str
    answer: type[A]


_RANGE: Final[_Method[rpc.RangeRequest, rpc.RangeResponse]] = _Method("/etcdserverpb.KV/Range", rpc.RangeResponse)
_TXN: Final[_Method[rpc.TxnRequest, rpc.TxnResponse]] = _Method("/etcdserverpb.KV/Txn", rpc.TxnResponse)
_COMPACT: Final[_Method[rpc.CompactionRequest, rpc.CompactionResponse]] = _Method(
    "/etcdserverpb.KV/Compact", rpc.CompactionResponse
)
_GRANT: Final[_Method[rpc.LeaseGrantRequest, rpc.LeaseGrantResponse]] = _Method(
    "/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantResponse
)
_REVOKE: Final[_Method[rpc.LeaseRevokeRequest, rpc.LeaseRevokeResponse]] = _Method(
    "/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeResponse
)
_AUTHENTICATE: Final[_Method[rpc.AuthenticateRequest, rpc.AuthenticateResponse]] = _Method(
    "/etcdserverpb.Auth/Authenticate", rpc.AuthenticateResponse
)


class EtcdClient:
    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        policy: EtcdRetryPolicy | None = None,
        jitter: Callable[[], float] = random.random,
        access: EtcdAccess | None = None,
    ) -> None:
        self.endpoints = tuple(endpoints)
        self.access = access or EtcdAccess()
        self._token: str | None = None
        """By which members know the user; they forget it after some minutes."""
        self._policy = policy or EtcdRetryPolicy()
        self._jitter = jitter
        self._at = 0
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._ending = TaskSet()
        self.stats = EtcdStats()

    def use(self, access: EtcdAccess) -> None:
        """For new connections, which are made for the next requests; those under way end on the old ones."""
        self.access, self._token = access, None
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            self._ending.start(channel.close(self._policy.longest_attempt_s))

    async def close(self) -> None:
        await self._ending.cancel()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def range(self, request: rpc.RangeRequest) -> rpc.RangeResponse:
        return await self._call(_RANGE, request)

    async def txn(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """`request` compares something that its success changes, or changes nothing."""
        return await self._call(_TXN, request)

    async def compact(self, revision: int) -> None:
        await self._call(_COMPACT, rpc.CompactionRequest(revision=revision))

    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        """Id and life in seconds, which may be longer than asked. A lease whose answer was lost ends by itself."""
        granted = await self._call(_GRANT, rpc.LeaseGrantRequest(TTL=ttl_s))
        return granted.ID, granted.TTL

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:
        await self._call(_REVOKE, rpc.LeaseRevokeRequest(ID=lease), deadline_s)

    @property
    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call; who lets a thread call takes it there."""
        return () if self._token is None else (("token", self._token),)

    # One request, as many attempts as it takes --------------------------------------------------------------------
    async def _call(self, method: _Method[Q, A], request: Q, deadline_s: float | None = None) -> A:
        loop = asyncio.get_running_loop()
        policy = self._policy
        ends = loop.time() + (policy.deadline_s if deadline_s is None else deadline_s)
        attempt_s, failures, lost = policy.attempt_s, 0, False
        while True:
            at = self._at
            try:
                left_s = ends - loop.time()
                return await self._as_user(method, request, at, max(0.001, min(attempt_s, left_s)))
            except grpc.aio.AioRpcError as error:
                refusal = _refusal(error)
                if refusal is not None:
                    refusal.is_certain = not lost
                    raise refusal from error
                lost, failures = True, failures + 1
                self.stats.attempts_failed += 1
                words = (
                    f"{method.path.rpartition('/')[2]} at {self.endpoints[at]}: {error.code().name}: {error.details()}"
                )
            _log.debug("request to etcd failed", attempt=failures, error=words)
            if self._at == at:
                self._at = (at + 1) % len(self.endpoints)
            attempt_s = min(2 * attempt_s, policy.longest_attempt_s)
            pause_s = pause_after(failures, policy.first_pause_s, policy.longest_pause_s, self._jitter())
            if loop.time() + pause_s >= ends:
                raise EtcdAway(f"no etcd member answered in time (the last one: {words}): see to etcd")
            await asyncio.sleep(pause_s)

    async def _as_user(self, method: _Method[Q, A], request: Q, at: int, timeout_s: float) -> A:
        """One attempt; two where members have forgotten who this is: what they refuse so was not done."""
        if self.access.user is not None and self._token is None:
            await self._authenticate(at, timeout_s)
        token = self._token
        try:
            return await self._attempt(method, request, at, timeout_s)
        except grpc.aio.AioRpcError as error:
            if token is None or not _is_token_refused(error):
                raise
            if self._token == token:
                self._token = None
                await self._authenticate(at, timeout_s)
        return await self._attempt(method, request, at, timeout_s)

    async def _authenticate(self, at: int, timeout_s: float) -> None:
        asked = rpc.AuthenticateRequest(name=self.access.user, password=self.access.password)
        try:
            self._token = (await self._attempt(_AUTHENTICATE, asked, at, timeout_s)).token
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" not in (error.details() or ""):
                raise

    async def _attempt(self, method: _Method[Q, A], request: Q, at: int, timeout_s: float) -> A:
        channel = self._channels.get(at)
        if channel is None:
            channel = self._channels[at] = self.access.channel(self.endpoints[at])
        call: Any = channel.unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        metadata = () if method is _AUTHENTICATE else self.call_metadata
        answer: A = await call(request, timeout=timeout_s, metadata=metadata)
        return answer


def _is_token_refused(error: grpc.aio.AioRpcError) -> bool:
    words = error.details() or ""
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "revision of auth store is old" in words


_FINAL: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: "a limit of etcd is lower than its default, or the request is wrong",
    grpc.StatusCode.OUT_OF_RANGE: "the revision is gone",
    grpc.StatusCode.NOT_FOUND: "the lease is gone",
    grpc.StatusCode.PERMISSION_DENIED: "etcd's user may not use this prefix: grant it read and write there",
    grpc.StatusCode.UNAUTHENTICATED: "etcd does not know this user",
    grpc.StatusCode.UNIMPLEMENTED: "this is not an etcd of version 3.4 or later",
    grpc.StatusCode.DATA_LOSS: "etcd says that its members differ: see to its CORRUPT alarm",
}


def _refusal(error: grpc.aio.AioRpcError) -> EtcdRefused | None:
    """What asking again will not change; None for what another attempt may."""
    words = error.details() or ""
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "database space exceeded" in words:
        return NoSpace(
            "etcd's quota is used up (NOSPACE): give it room (compact, defragment, raise --quota-backend-bytes), then "
            "disarm the alarm; writing continues by itself then",
            error.code(),
        )
    why = _FINAL.get(error.code())
    if "user name is empty" in words:
        why = "etcd wants a user: name --etcd-user, and give its password"
    elif "invalid user ID or password" in words:
        why = "no such user, or another password: see to --etcd-user and its password"
    return None if why is None else EtcdRefused(f"etcd refuses: {words} ({why})", error.code())
