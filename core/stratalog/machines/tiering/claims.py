"""Decides from the claims of its write lock's epochs whether a node may write to the bucket and delete from it. A
lock's epoch is only as trustworthy as the metadata that gives it. A copy of a disk, or metadata restored from an older
state, gives used epochs again; its view of the bucket is old, and it would sweep another node's live data as garbage.
So each epoch is claimed in the bucket, and metadata remembers by which lives (`Lock.holder`, `Lock.earlier`): a claim
by a life that metadata does not know shows that another copy of the metadata was in use.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

NEXT_STEP = (
    "if another node runs on a copy of this directory, stop this one permanently; if this directory or its "
    "metadata was "
    "put back from an older copy, put the newer one back. To continue from here anyway, with what the other wrote "
    "since left alone in the bucket: make sure that the other is gone, then delete the claims named here"
)


def holder_name(life: str, nonce: UUID) -> str:
    """The name under which one life of a process holds its write lock: metadata remembers its nonce with it."""
    return f"{life}{name_ending(nonce)}"


def name_ending(nonce: UUID) -> str:
    """How the name of the life with this nonce ends."""
    return f"/{nonce.hex}"


def is_known(nonce: UUID, holders: Collection[str]) -> bool:
    """Whether a claim's nonce is of one of these lives."""
    return any(holder.endswith(name_ending(nonce)) for holder in holders)


@dataclass(frozen=True, slots=True)
class ReadClaim:
    """It is not known yet which life has the claim of this epoch."""

    lock_epoch: int


@dataclass(frozen=True, slots=True)
class PutClaim:
    """The epoch is free, and everything before it is ours."""


@dataclass(frozen=True, slots=True)
class ClaimHeld:
    """The epoch is ours and the highest. `over` are the claims of earlier epochs: they have told all they can."""

    over: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClaimForked:
    """A life that metadata does not know claimed this epoch."""

    lock_epoch: int


ClaimStep: TypeAlias = ReadClaim | PutClaim | ClaimHeld | ClaimForked


def next_step(listed: Collection[int], nonces: dict[int, UUID], ours: int, holders: Collection[str]) -> ClaimStep:
    """What to do to hold epoch `ours`.

    `listed` are the epochs that are claimed, `nonces` what was read of the claims so far, `holders` the lives that
    metadata knows, this one among them. An epoch above ours is a fork whoever claimed it: metadata gave ours last.
    """
    for epoch in sorted(listed, reverse=True):
        nonce = nonces.get(epoch)
        if nonce is None and epoch <= ours:
            return ReadClaim(epoch)
        if epoch > ours or (nonce is not None and not is_known(nonce, holders)):
            return ClaimForked(epoch)
    if ours not in listed:
        return PutClaim()
    return ClaimHeld(tuple(sorted(epoch for epoch in listed if epoch < ours)))
