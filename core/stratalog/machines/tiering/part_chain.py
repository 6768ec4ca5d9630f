"""Chooses, among all complete parts of one segment in a bucket, those that together are the segment.

For a rebuild of metadata from the bucket, where no manifest says which attempts count. Digests link parts to chains, so
two parts with different records for the same offsets are never mixed. Of the chains that begin at the segment's base,
the one with the newest writer is chosen, and of these the longest. A later holder of the write lock has seen the
metadata of the earlier ones, and what the disk had lost by then.
Guarantee: the chain reaches at least as far as was ever committed, with the committed records, as long as the committed
parts are there (docs/formats.md section 13). What reaches further is complete attempts that were not committed.
Cost: O(n log n) of the parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from stratalog.model.segment import RemotePart


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A complete, checked part: what its header says, and of its object's name the lock epoch and the attempt."""

    part: RemotePart
    digest_before: bytes
    digest_after: bytes
    lock_epoch: int
    attempt: int


_Place: TypeAlias = tuple[int, bytes]
"""An offset, and the segment's digest there: what has been written up to it."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """The best way on from a place."""

    newest_epoch: int
    end_offset: int
    step: FoundPart


def choose_chain(
    base_offset: int, empty_digest: bytes, parts: Iterable[FoundPart], end_offset: int | None = None
) -> tuple[FoundPart, ...]:
    """The segment's parts, in order, without a gap; empty when none begins at `base_offset`.

    `end_offset`: where the segment ends, if that is known: the base of the next one. Parts that go beyond are of a tail
    that was lost, and are passed over.
    """
    leaving: dict[_Place, list[FoundPart]] = {}
    for found in parts:
        if end_offset is None or found.part.end_offset <= end_offset:
            leaving.setdefault((found.part.base_offset, found.digest_before), []).append(found)
    ways: dict[_Place, _Chain] = {}
    for place in sorted(leaving, reverse=True):
        ways[place] = max((_chain_from(found, ways) for found in leaving[place]), key=_rank)
    chain: list[FoundPart] = []
    place = (base_offset, empty_digest)
    while (way := ways.get(place)) is not None:
        chain.append(way.step)
        place = (way.step.part.end_offset, way.step.digest_after)
    return tuple(chain)


def _chain_from(found: FoundPart, ways: dict[_Place, _Chain]) -> _Chain:
    """Over this part, and then the best way from its end. Requires: all ways from higher offsets are known."""
    onward = ways.get((found.part.end_offset, found.digest_after))
    if onward is None:
        return _Chain(found.lock_epoch, found.part.end_offset, found)
    return _Chain(max(found.lock_epoch, onward.newest_epoch), onward.end_offset, found)


def _rank(way: _Chain) -> tuple[int, int, int, int, str]:
    return way.newest_epoch, way.end_offset, way.step.lock_epoch, way.step.attempt, way.step.part.object_key
