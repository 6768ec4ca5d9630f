"""Holds this process's claim on the epoch of its write lock, an object in the bucket, and tells a forked node from this
node's own past.

`stratalog.machines.tiering.claims` decides. A claim is put create-only and always read back, so a lost answer, a name
that is taken and a claim of an earlier life are one case. Fails closed: a claim that cannot be read is not held.
Cost: six small requests when the lock is gained, one listing when the claim is checked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

from stratalog.formats.bucket.claim import Claim, encode_claim
from stratalog.formats.bucket.object_names import ClaimName, ObjectNames
from stratalog.machines.table.locks import MAX_LASTING_HOLDERS
from stratalog.machines.tiering.claims import (
    NEXT_STEP,
    ClaimForked,
    ClaimHeld,
    PutClaim,
    ReadClaim,
    name_ending,
    next_step,
)
from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    Fenced,
    NotFound,
    OutcomeUnknown,
    StratalogError,
    Unavailable,
)
from stratalog.model.metadata import Lock
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.claims import read_claim
from stratalog_node.tier.store import wrong_store
from stratalog_node.tier.store.stats import TierStats

_LISTINGS = 8
_LATE_ANSWER_MS = 60_000
"""A put may land so long after its time limit, at the latest."""


class Forked(Fenced):
    """Another process of this node that the metadata do not know writes to the bucket, or the bucket is not the one
    that holds the node's data: this process must not write."""


@dataclass(frozen=True, slots=True)
class ClaimOwner:
    """`nonce` is of this life; the lock's holder names end with the nonces that metadata knows."""

    node_id: int
    storage_id: str
    nonce: UUID


class EpochClaim:
    def __init__(
        self,
        owner: ClaimOwner,
        names: ObjectNames,
        store: ObjectStore,
        limits: UploadLimits,
        stats: TierStats,
        is_store_expected_to_hold_data: Callable[[], bool],
        clock_ms: Callable[[], int],
    ) -> None:
        """`clock_ms` must be monotonic."""
        self._has_data = is_store_expected_to_hold_data
        self._owner = owner
        self._names = names
        self._node_id = owner.node_id
        self._nonce = owner.nonce
        self._store = store
        self._timeout_s = limits.call_timeout_ms / 1_000
        self._late_put_ms = 2 * limits.put_timeout_ms + _LATE_ANSWER_MS
        self._stats = stats
        self._read: dict[tuple[int, int], UUID] = {}
        """Nonces of claims, by epoch and the store's time: one that was put again is read again."""
        self._clock_ms = clock_ms
        self._claimed_ms: int | None = None
        self._claimed_at_ms = 0
        """When that was, by our own clock."""
        self._ahead_to_ms = 0
        """The latest time of an object that was yet to come by the store's clock: it has been set back since."""
        self._witness: str | None = None
        self.fork: str | None = None
        """Why this node neither uploads nor sweeps, and the next step; None while nothing is known to be wrong."""

    async def listed(self) -> list[str]:
        """The name endings of the lives whose claims are in the bucket: metadata must not forget any of its own.

        Called before an epoch is taken, so that none is spent while claims cannot be listed and read.
        Raises: Forked for the wrong store; Corrupt; what the store raises while it is away.
        """
        async with self._in_time("claims of lock epochs"):
            listed = await self._list()
            if not listed:
                await self._check_that_it_is_our_store()
            if len(listed) > MAX_LASTING_HOLDERS:
                raise Unavailable(
                    f"{len(listed)} claims are left below {self._names.node_claims_prefix(self._node_id)}: earlier "
                    f"ones "
                    "could not be deleted. Let this node delete objects there, and delete all but the last one"
                )
            for epoch, at in listed.items():
                if (epoch, at) not in self._read:
                    with suppress(NotFound):  # taken away meanwhile
                        self._read[epoch, at] = await self._nonce_of(epoch)
        return [name_ending(nonce) for nonce in self._read.values()]

    async def hold(self, lock: Lock) -> None:
        """Claim the lock's epoch, or see that it still is ours and the highest.

        Raises: Forked; Corrupt for a claim that does not read; what the store raises while it is away.
        """
        async with self._in_time(f"claim of lock epoch {lock.epoch}"):
            if self._witness is not None:
                raise Forked(self._witness)
            await self._hold(lock)
        self.fork = None
        self._stats.is_forked = 0

    @asynccontextmanager
    async def _in_time(self, what: str) -> AsyncIterator[None]:
        """Notes a fork that is found inside."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except Forked as fork:
            self._stats.forks_found += self.fork is None
            self.fork = str(fork)
            self._stats.is_forked = 1
            raise
        except TimeoutError as error:
            raise Unavailable(f"{what}: the object store did not answer in time") from error

    def witness(self, key: str, lock_epoch: int, epoch: int, modified_ms: int) -> None:
        """Check a listed object of this node. Raises: Forked if it was written under an earlier epoch long after the
        present one was claimed: then a copy of this node is running. An object with a time in the future does not
        count: the store's clock (for a directory the machine's) was ahead when it was written."""
        if lock_epoch >= epoch or self._claimed_ms is None:
            return
        now_ms = self._claimed_ms + self._clock_ms() - self._claimed_at_ms
        if modified_ms > now_ms + self._late_put_ms:
            self._ahead_to_ms = max(self._ahead_to_ms, modified_ms)
        if modified_ms > max(self._claimed_ms + self._late_put_ms, self._ahead_to_ms):
            self._witness = (
                f"{key} was written under lock epoch {lock_epoch} after epoch {epoch} had been claimed: a copy of node "
                f"{self._node_id} is alive; {NEXT_STEP}"
            )
            raise Forked(self._witness)

    async def _hold(self, lock: Lock) -> None:
        holders = (lock.holder, *lock.earlier)
        for _ in range(_LISTINGS):
            listed = await self._list()
            nonces = {epoch: self._read[epoch, at] for epoch, at in listed.items() if (epoch, at) in self._read}
            while isinstance(step := next_step(listed, nonces, lock.epoch, holders), ReadClaim):
                try:
                    nonce = await self._nonce_of(step.lock_epoch)
                except NotFound:
                    break  # taken away meanwhile: list again
                nonces[step.lock_epoch] = self._read[step.lock_epoch, listed[step.lock_epoch]] = nonce
            match step:
                case ClaimForked(epoch):
                    raise Forked(self._fork_words(epoch, lock))
                case ClaimHeld(over):
                    if nonces[lock.epoch] != self._nonce:
                        raise Forked(self._fork_words(lock.epoch, lock))
                    if self._claimed_ms != listed[lock.epoch]:
                        self._claimed_ms, self._claimed_at_ms = listed[lock.epoch], self._clock_ms()
                    await self._take_away(over)
                    return
                case PutClaim():
                    if not listed:
                        await self._check_that_it_is_our_store()
                    await self._put(lock)
                case ReadClaim():
                    pass
        raise Unavailable(
            f"claim of lock epoch {lock.epoch}: the claims in the bucket changed during each listing: try again"
        )

    async def _check_that_it_is_our_store(self) -> None:
        if self._has_data() and await wrong_store.has_nothing(self._store, self._names):
            raise Forked(wrong_store.words(self._store, self._names))

    async def _list(self) -> dict[int, int]:
        """The store's time of each claim of this node, by epoch."""
        listed: dict[int, int] = {}
        async for info in self._store.list(self._names.node_claims_prefix(self._node_id)):
            name = self._names.parse(info.key)
            if isinstance(name, ClaimName):
                listed[name.lock_epoch] = info.modified_ms
        self._read = {(epoch, at): nonce for (epoch, at), nonce in self._read.items() if listed.get(epoch) == at}
        return listed

    async def _nonce_of(self, lock_epoch: int) -> UUID:
        key = self._key(lock_epoch)
        name = ClaimName(self._node_id, lock_epoch)
        return (await read_claim(self._store, self._names.cluster_id, name, key)).nonce

    async def _put(self, lock: Lock) -> None:
        """An answer that is lost, or a name that is taken, is seen by reading back."""
        owner = self._owner
        claim = Claim(self._names.cluster_id, owner.node_id, owner.storage_id, lock.epoch, owner.nonce)
        with suppress(AlreadyExists, Conflict, OutcomeUnknown):
            await self._store.put(self._key(lock.epoch), [encode_claim(claim)])

    async def _take_away(self, over: Iterable[int]) -> None:
        """The lock remembers claims of earlier epochs, so the next pass tries again."""
        keys = [self._key(epoch) for epoch in over]
        if keys:
            with suppress(StratalogError):
                await self._store.delete(keys)

    def _fork_words(self, epoch: int, lock: Lock) -> str:
        return (
            f"lock epoch {epoch} of node {self._node_id} was claimed in the bucket by a life that this node's metadata "
            f"does not know ({self._key(epoch)}; metadata gave epoch {lock.epoch}): {NEXT_STEP}"
        )

    def _key(self, lock_epoch: int) -> str:
        return self._names.claim(node_id=self._node_id, lock_epoch=lock_epoch)
