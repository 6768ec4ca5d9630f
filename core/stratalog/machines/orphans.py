"""Decides which listed objects are orphans: of an attempt that was not chosen, or of a segment that is gone.

Careful by construction: what is not positively explained stays. Metadata that came back older than the bucket must not
make the bucket's data garbage, so an object of a segment that metadata never tells of is reported, not deleted.
Requires: the facts were read *after* the listing, so that a commit in between is seen (F27), and what is protected was
noted between the two, or a commit that came after the facts would have its object taken for an orphan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stratalog.model.ids import SegmentKey


class Verdict(StrEnum):
    REFERENCED = "referenced"
    WAIT = "wait"
    """In flight, younger than the grace, or of a newer write lock or another node: hands off, for now."""
    ORPHAN = "orphan"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a segment's folder, by what its name says."""

    key: str
    segment: SegmentKey
    node_id: int
    lock_epoch: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class OrphanRules:
    node_id: int
    lock_epoch: int
    grace_ms: int


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What metadata says of the segment that an object's name names."""

    referenced: frozenset[str] | None
    """The objects it consists of; None when metadata tells of no such segment."""
    is_deleted: bool
    """It waits for its deletion, which takes the whole folder after a grace of its own."""
    log_start_offset: int | None
    """Of its shard; None when the shard is unknown."""
    is_purged: bool
    """This process has purged it, or its topic."""


def judge(
    listed: ListedObject, facts: SegmentFacts, rules: OrphanRules, is_protected: Callable[[str], bool], now_ms: int
) -> Verdict:
    """What becomes of one object."""
    if facts.referenced is not None and listed.key in facts.referenced:
        return Verdict.REFERENCED
    if facts.is_deleted or is_protected(listed.key):
        return Verdict.WAIT
    if listed.node_id != rules.node_id or listed.lock_epoch > rules.lock_epoch:
        return Verdict.WAIT
    if now_ms - listed.modified_ms < rules.grace_ms:
        return Verdict.WAIT
    if facts.referenced is not None or facts.is_purged:
        return Verdict.ORPHAN
    if facts.log_start_offset is not None and listed.segment.base_offset < facts.log_start_offset:
        return Verdict.ORPHAN  # purged before: retention moved the log start past it, and never moves it back
    return Verdict.UNEXPLAINED
