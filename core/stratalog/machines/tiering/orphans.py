"""Decides which listed objects are orphans: of an attempt that was not chosen, or of a segment that is gone.

Careful by construction: what is not positively explained stays. An attempt was not chosen only where another was: for
a range that metadata does not hold as committed, what lies in the bucket may be all there is of it, written by a life
that this metadata does not remember. An object of a segment that metadata never tells of is reported, not deleted.
Requires: the facts were read *after* the listing, so that a commit in between is seen (F27), and what is protected was
noted between the two, or a commit that came after the facts would have its object taken for an orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment


class Verdict(StrEnum):
    REFERENCED = "referenced"
    WAIT = "wait"
    """In flight, younger than the grace, of another node, of a range that is not committed, or of a segment whose
    manifest was replaced so short a time ago that readers may hold the old one, or that may be named by a manifest
    which lies there yet: hands off, for now."""
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
    is_chunk: bool
    to_offset: int
    is_manifest: bool = False


@dataclass(frozen=True, slots=True)
class OrphanRules:
    lock_epochs: Mapping[int, int]
    """Whose objects are judged, and under which epoch of its write lock each of them can have written last."""
    grace_ms: int


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What metadata says of the segment that an object's name names."""

    segment: Segment | None
    """None when metadata tells of no such segment, living or waiting for its deletion."""
    referenced: frozenset[str]
    """The objects it consists of."""
    is_deleted: bool
    """It waits for its deletion, which takes the whole folder after a grace of its own."""
    log_start_offset: int | None
    """Of its shard; None when the shard is unknown."""
    is_purged: bool
    """Metadata remembers that its topic was purged."""


def classify_folder(
    objects: Sequence[ListedObject],
    facts: SegmentFacts,
    rules: OrphanRules,
    is_protected: Callable[[str], bool],
    now_ms: int,
) -> list[Verdict]:
    """The fate of each object of a segment. While a manifest other than the named one stays, so do all objects that it
    may name: another writer sweeps it, and readers without metadata, or with older ones, may read by it."""
    verdicts = [classify_object(listed, facts, rules, is_protected, now_ms) for listed in objects]
    is_named_yet = facts.segment is not None and any(
        listed.is_manifest and verdict in (Verdict.WAIT, Verdict.UNEXPLAINED)
        for listed, verdict in zip(objects, verdicts, strict=True)
    )
    return [
        Verdict.WAIT if is_named_yet and verdict is Verdict.ORPHAN and not listed.is_manifest else verdict
        for listed, verdict in zip(objects, verdicts, strict=True)
    ]


def classify_object(
    listed: ListedObject, facts: SegmentFacts, rules: OrphanRules, is_protected: Callable[[str], bool], now_ms: int
) -> Verdict:
    """What becomes of one object."""
    if listed.key in facts.referenced:
        return Verdict.REFERENCED
    if facts.is_deleted or is_protected(listed.key) or listed.node_id not in rules.lock_epochs:
        return Verdict.WAIT
    if now_ms - listed.modified_ms < rules.grace_ms:
        return Verdict.WAIT
    if listed.lock_epoch > rules.lock_epochs[listed.node_id]:
        return Verdict.UNEXPLAINED  # metadata gave no such epoch yet: whoever wrote it knows more than we do
    if facts.segment is not None:
        is_readers_gone = now_ms - facts.segment.remote.replaced_ms >= rules.grace_ms
        return Verdict.ORPHAN if _is_chosen_otherwise(listed, facts.segment) and is_readers_gone else Verdict.WAIT
    if facts.is_purged or is_below_log_start(listed.segment, facts.log_start_offset):
        return Verdict.ORPHAN
    return Verdict.UNEXPLAINED


def _is_chosen_otherwise(listed: ListedObject, segment: Segment) -> bool:
    if segment.remote.state is RemoteState.COMPLETE:
        return True
    return listed.is_chunk and listed.to_offset <= segment.remote.commit_offset


def is_below_log_start(key: SegmentKey, log_start_offset: int | None) -> bool:
    """Purged before: retention moved the log start past it, and never moves it back."""
    return log_start_offset is not None and key.base_offset < log_start_offset


def is_part_explained(
    key: SegmentKey, end_offset: int, segment: Segment | None, log_start_offset: int | None, is_purged: bool
) -> bool:
    """Whether metadata tells why it does not refer to a part, ending at `end_offset`, of a bundle: the range is
    committed elsewhere, or is gone. `segment` is the living or the deleted one."""
    if segment is None:
        return is_purged or is_below_log_start(key, log_start_offset)
    if segment.deleted_ms is not None or segment.remote.state is RemoteState.COMPLETE:
        return True
    return end_offset <= segment.remote.commit_offset
