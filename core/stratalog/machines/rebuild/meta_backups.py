"""Decides about the snapshots of the metadata in the bucket: whose they are, which to keep, what must be in one.

A metadata store remembers the nonce of each snapshot before a byte of it is put (in its lock `LOCK`, as claims are
remembered: decision 0009). So a snapshot that a store does not know was put by one that is newer than it, or went
another way: the store is an older copy, and what it would hand out may have been handed out before.

Nothing is freed that no snapshot tells of (`Witness`): so what an older store does not know still lies on the disks,
where a start finds it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from stratalog.machines.tiering.claims import is_known, name_ending
from stratalog.model.ids import MAX_OFFSET, SegmentKey
from stratalog.model.metadata import Lock

LOCK: Final = "meta/snapshots"
KEPT: Final = 3
"""So many whole snapshots stay, the newest ones."""


@dataclass(frozen=True, slots=True, order=True)
class FoundSnapshot:
    """One try to put a snapshot, as its objects' names tell; in the order of their making."""

    number: int
    version: int
    nonce: UUID
    is_headed: bool
    """Its head is there, which was put last."""
    keys: tuple[str, ...]


def holder_of(nonce: UUID) -> str:
    """The name under which a store remembers a try."""
    return f"snapshot{name_ending(nonce)}"


def lasting(found: Iterable[FoundSnapshot]) -> tuple[str, ...]:
    """What must stay remembered: all that are in the bucket."""
    return tuple(sorted({name_ending(snapshot.nonce) for snapshot in found}))


def stranger(found: Iterable[FoundSnapshot], lock: Lock | None) -> FoundSnapshot | None:
    """The newest snapshot that the store with this lock never put; None when it knows them all."""
    holders: Collection[str] = () if lock is None else (lock.holder, *lock.earlier)
    return max((snapshot for snapshot in found if not is_known(snapshot.nonce, holders)), default=None)


def to_remove(found: Collection[FoundSnapshot]) -> tuple[str, ...]:
    """Keys of what has had its day: whole ones but the newest few, tries that never ended, older than the newest whole
    one. The head of a snapshot goes first, so that none is left that names what is gone."""
    whole = sorted((snapshot for snapshot in found if snapshot.is_headed), reverse=True)
    if not whole:
        return ()
    old = {*whole[KEPT:], *(one for one in found if not one.is_headed and one.number < whole[0].number)}
    return tuple(key for snapshot in sorted(old) for key in snapshot.keys)


def words_of_stranger(snapshot: FoundSnapshot, version: int, place: str) -> str:
    """Why the metadata may not be used, and what to do."""
    return (
        f"these metadata (version {version}) are older than the bucket, or a copy went another way: {place} holds "
        f"snapshot {snapshot.number} of version {snapshot.version}, which they do not know ({snapshot.keys[0]}). They "
        "could give out offsets a second time, so nothing is changed under them. Put the newer metadata back; if they "
        "are lost, `stratalog meta rebuild` makes them again from the bucket, into an empty store"
    )


class Witness:
    """Which segments' local copies may be freed: those that a snapshot in the bucket lists as complete there. Cost: one
    entry per segment that became complete since the last snapshot."""

    def __init__(self, began_version: int) -> None:
        """What became complete up to `began_version` is not known one by one."""
        self._began_version = began_version
        self._told_version = -1
        self._completed: dict[SegmentKey, int] = {}

    def completing(self, key: SegmentKey) -> None:
        """It is about to become complete."""
        self._completed[key] = MAX_OFFSET

    def completed(self, key: SegmentKey, version: int) -> None:
        """If it became so, then at this version at the latest."""
        self._completed[key] = version

    def outcome_unknown(self, key: SegmentKey, version: int) -> None:
        """If it becomes so, then after this version, and before any later snapshot: one is not taken while the store
        has not said what it kept."""
        self._completed[key] = version + 1

    def backed_up(self, version: int) -> None:
        """A snapshot of this version, and of this store, is in the bucket."""
        self._told_version = max(version, self._told_version)
        self._completed = {key: since for key, since in self._completed.items() if since > version}

    def not_backed_up(self, segments: Iterable[SegmentKey]) -> SegmentKey | None:
        """The first of these that no snapshot is known to tell of."""
        is_blind = self._told_version < self._began_version
        return next((key for key in segments if is_blind or key in self._completed), None)
