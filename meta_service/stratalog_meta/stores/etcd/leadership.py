"""Leads while it holds an etcd lease: one key that goes when the lease does, created by the first candidate. Its create
revision is the fence in every write of the store. The lease's time counts here from before each request that renewed
it, so this process stops leading before etcd lets another begin, as far as clocks run alike; where they do not, the
fence holds. A lease is shorter than an election among etcd's members may last, and none ends meanwhile: a leader whose
lease is over by its own clock does not lead (`is_leading`), and leads again if etcd still knows the lease, because then
no other process led. A candidate polls the key instead of watching it: there is no watch to resume, and a member that
hangs costs one attempt.

Lives on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Final

from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog.telemetry.logs import logger
from stratalog_meta.stores.etcd import rpc_pb2 as rpc
from stratalog_meta.stores.etcd.client import EtcdClient
from stratalog_meta.stores.etcd.layout import LEADER
from stratalog_meta.stores.etcd.lease_keeper import LeaseKeeper

LEASE_S: Final = 2
"""The least that etcd grants with its defaults (one and a half election timeouts, in whole seconds)."""
POLL_S: Final = 0.15
"""The pause between two reads of the leader key."""
RETRY_S: Final = 1.0
"""When etcd refuses (no space, users) it may do so for long."""
_RESIGN_S: Final = 2.0

_log = logger(__name__)


class EtcdLeadership:
    """Implements `Leadership`: one candidacy."""

    def __init__(
        self,
        client: EtcdClient,
        key_prefix: bytes,
        address: str,
        *,
        lease_s: int = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`address` is where this process serves; others learn it from `leader_address`."""
        if not address or not address.isprintable():
            raise InvalidRequest(f"a leader's address is one line of text, not {address!r}: name HOST:PORT")
        self._client = client
        self._key = key_prefix + LEADER
        self._address = address
        self._lease_s = lease_s
        self._clock = clock
        self._jitter = jitter
        self._lost = asyncio.Event()
        self._lease = 0
        self._life_s = lease_s
        """As etcd granted it."""
        self._until = 0.0
        """The end of a lease that no keeper renews yet."""
        self._revision = 0
        self._seen: str | None = None
        self._keeper: LeaseKeeper | None = None

    @property
    def lost(self) -> asyncio.Event:
        return self._lost

    @property
    def is_leading(self) -> bool:
        keeper = self._keeper
        return keeper is not None and not self._lost.is_set() and self._clock() < keeper.until

    @property
    def revision(self) -> int:
        """The revision in which the leader key was created for this candidacy. Each write compares it, so a write does
        no harm if it is sent while it is unknown whether this process still leads. Raises Unavailable once it leads no
        more."""
        if not self._revision or self._lost.is_set():
            other = f": ask {self._seen}" if self._seen not in (None, self._address) else ""
            raise Unavailable(f"this instance ({self._address}) does not lead the metadata{other}")
        return self._revision

    def leader_address(self) -> str | None:
        return self._seen

    async def campaign(self) -> None:
        last_logged = ""
        while not self._lost.is_set():
            pause_s = POLL_S
            try:
                if await self._try_to_lead():
                    break
            except Unavailable as error:
                pause_s = RETRY_S
                if str(error) != last_logged:
                    last_logged = str(error)
                    _log.warning(
                        "etcd does not answer, waiting to become leader", address=self._address, error=last_logged
                    )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * (0.5 + self._jitter())):
                    await self._lost.wait()
        if self._lost.is_set():
            await self._let_lease_go()
            raise Unavailable(f"the candidacy of {self._address} is over: make another one")
        self._lead()

    async def lead_now(self) -> None:
        """Lead at once, or not at all. Raises: Conflict where another leads, Unavailable where etcd does not answer;
        then this candidacy is over."""
        try:
            is_won = await self._try_to_lead()
        except BaseException:
            self._lost.set()
            await self._let_lease_go()
            raise
        if not is_won:
            self._lost.set()
            await self._let_lease_go()
            raise Conflict(
                f"a meta service leads on this store ({self._seen}), and nothing else may write there: stop all its "
                f"instances first; if they were stopped just now, try again in {2 * self._lease_s} s. Nothing was done"
            )
        self._lead()

    def _lead(self) -> None:
        _log.info("leadership won", address=self._address, revision=self._revision)
        self._keeper = LeaseKeeper(self._client, self._lease, self._life_s, self._until, self._clock, self.lose)
        self._keeper.start()

    async def _try_to_lead(self) -> bool:
        """Whether this candidacy has the key now."""
        present = await self._read_key()
        if present is None:
            if self._clock() >= self._until:
                asked = self._clock()
                self._lease, self._life_s = await self._client.grant_lease(self._lease_s)
                self._until = asked + self._life_s
            present = await self._create()
        self._seen = present.value.decode("utf-8", "replace")
        if present.lease != self._lease or self._clock() >= self._until:
            return False
        self._revision = present.create_revision
        return True

    async def _read_key(self) -> rpc.KeyValue | None:
        answer = await self._client.range(rpc.RangeRequest(key=self._key))
        if not answer.kvs:
            self._seen = None
            return None
        present: rpc.KeyValue = answer.kvs[0]
        return present

    async def _create(self) -> rpc.KeyValue:
        """The key as it is then: ours, or of who came first. Sent again it finds its own."""
        value = self._address.encode()
        answer = await self._client.txn(
            rpc.TxnRequest(
                compare=[rpc.Compare(target=rpc.Compare.CREATE, key=self._key, create_revision=0)],
                success=[
                    rpc.RequestOp(request_put=rpc.PutRequest(key=self._key, value=value, lease=self._lease)),
                    rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key)),
                ],
                failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key))],
            )
        )
        present: rpc.KeyValue = answer.responses[-1].response_range.kvs[0]
        return present

    def lose(self, why: str) -> None:
        """Lead no more: the store calls it as well when etcd shows another leader."""
        if self._lost.is_set():
            return
        self._lost.set()
        self._seen = None
        if self._keeper is not None:
            self._keeper.stop()
        if self._revision:
            _log.warning("leadership lost", address=self._address, why=why)

    async def resign(self) -> None:
        self.lose("it resigned")
        await self._let_lease_go()

    async def _let_lease_go(self) -> None:
        lease, self._lease = self._lease, 0
        until = self._until if self._keeper is None else self._keeper.until
        if lease and self._clock() < until:
            with contextlib.suppress(Unavailable):  # it ends by itself then
                await self._client.revoke_lease(lease, _RESIGN_S)
