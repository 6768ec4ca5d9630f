"""Decides what becomes of bundles: which parts merge, which bundles are rewritten, which go.

A quiet shard commits a small part per interval, in a bundle. Left alone they would be thousands: slow to read,
and a bundle would live as long as its longest-lived part. Parts of like size next to each other are merged,
`merge_parts` at a time, so that a segment has few of them and a byte is rewritten a bounded number of times; a bundle
that is half dead, or old with something dead in it, is emptied by moving its live parts (design section 5: deleted
topics really go).
Cost: `merge_run` looks at the parts at the end only, stopping at the first that is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart

SMALLEST_LEVEL_BYTES = 16 << 10
LEVEL_FACTOR = 16
_LEAST_MERGE_BYTES = 64 << 10

IsBundleKey: TypeAlias = Callable[[str], bool]


def merge_limit_bytes(chunk_bytes: int) -> int:
    """No merged part is planned larger than this."""
    return max(chunk_bytes, _LEAST_MERGE_BYTES)


def settled_bytes(chunk_bytes: int) -> int:
    """A part of this size is never merged again: it may as well have an object of its own."""
    return merge_limit_bytes(chunk_bytes) // 4


@cache
def _levels(chunk_bytes: int) -> tuple[int, ...]:
    """Upper bounds of the levels, rising. What is not below the last one is never merged again."""
    final = settled_bytes(chunk_bytes)
    levels = []
    bound = SMALLEST_LEVEL_BYTES
    while bound < final:
        levels.append(bound)
        bound *= LEVEL_FACTOR
    return (*levels, final)


def run_starts(parts: Sequence[RemotePart], is_bundle_key: IsBundleKey, chunk_bytes: int) -> list[int]:
    """For each level, the index at which the parts of that level or less begin that reach to the end."""
    starts = []
    index = len(parts)
    for bound in _levels(chunk_bytes):
        while index > 0 and parts[index - 1].size_bytes < bound and is_bundle_key(parts[index - 1].object_key):
            index -= 1
        starts.append(index)
    return starts


def merge_run(
    parts: Sequence[RemotePart], is_bundle_key: IsBundleKey, *, chunk_bytes: int, merge_parts: int
) -> tuple[RemotePart, ...]:
    """The parts that should become one now; empty when there are too few of like size."""
    if len(parts) < merge_parts:
        return ()
    lower = 0
    for bound, start in zip(_levels(chunk_bytes), run_starts(parts, is_bundle_key, chunk_bytes), strict=True):
        run = [parts[index] for index in range(start, len(parts))]
        if sum(lower <= part.size_bytes < bound for part in run) >= merge_parts:
            return _up_to(run, merge_limit_bytes(chunk_bytes))
        lower = bound
    return ()


def bundled_run(parts: Sequence[RemotePart], is_bundle_key: IsBundleKey, max_bytes: int) -> tuple[RemotePart, ...]:
    """The first neighbours that lie in bundles, about `max_bytes` of them: what a sealed segment must take home, so
    that its remote copy lies wholly in its own folder."""
    run: list[RemotePart] = []
    for part in parts:
        if is_bundle_key(part.object_key):
            run.append(part)
        elif run:
            break
    return _up_to(run, max_bytes)


def _up_to(run: Sequence[RemotePart], max_bytes: int) -> tuple[RemotePart, ...]:
    """The head of a run, at least one part."""
    total = 0
    for count, part in enumerate(run):
        total += part.size_bytes
        if total > max_bytes and count:
            return tuple(run[:count])
    return tuple(run)


# Whole bundles ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class BundleLimits:
    delete_delay_ms: int = 60_000
    """Longer than the longest read: a reader may still hold a part's place (F35)."""
    orphan_grace_ms: int = 3_600_000
    max_age_ms: int = 86_400_000
    """An older bundle with anything dead in it is rewritten."""
    rewrite_bytes: int = 64 << 20
    """Live bytes moved by one pass."""


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """A bundle as the store lists it. `part_count` is what its trailer says, None until it is read."""

    key: str
    size_bytes: int
    modified_ms: int
    part_count: int | None
    is_protected: bool
    """Of an upload in flight, or doubtful, or of a newer write lock: hands off."""


@dataclass(frozen=True, slots=True)
class LivePart:
    segment: SegmentKey
    part: RemotePart


@dataclass(frozen=True, slots=True)
class DeleteBundle:
    key: str


@dataclass(frozen=True, slots=True)
class RewriteBundle:
    key: str
    live: tuple[LivePart, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class BundlePlan:
    deletions: tuple[DeleteBundle, ...]
    rewrites: tuple[RewriteBundle, ...]
    unreferenced_since: Mapping[str, int]
    """Bundles that were referenced once and are no more: since when. Give it to the next pass."""
    referenced: frozenset[str]
    asked: Mapping[str, int]
    """How often each bundle that is still there was asked to be rewritten. Give it to the next pass."""


EMPTY_PLAN = BundlePlan((), (), {}, frozenset(), {})


def plan_bundles(
    stored: Iterable[StoredBundle],
    live: Mapping[str, Sequence[LivePart]],
    before: BundlePlan,
    now_ms: int,
    limits: BundleLimits,
) -> BundlePlan:
    """`live` must have been read after `stored` was listed, so that a commit in between is seen (F27).

    Those that were asked the least often are rewritten first: one that cannot be emptied (its segment does not read)
    waits behind all others, and does not use up what a pass may move.
    """
    deletions: list[DeleteBundle] = []
    wanted: list[RewriteBundle] = []
    unreferenced: dict[str, int] = {}
    referenced: set[str] = set()
    asked: dict[str, int] = {}
    for bundle in stored:
        parts = live.get(bundle.key, ())
        if bundle.is_protected:
            continue
        if not parts:
            if bundle.key in before.referenced or bundle.key in before.unreferenced_since:
                since = before.unreferenced_since.get(bundle.key, now_ms)
                is_due = now_ms - since >= limits.delete_delay_ms
                unreferenced[bundle.key] = since
            else:
                is_due = now_ms - bundle.modified_ms >= limits.orphan_grace_ms
            if is_due:
                deletions.append(DeleteBundle(bundle.key))
            continue
        referenced.add(bundle.key)
        live_bytes = sum(entry.part.size_bytes for entry in parts)
        reason = _why_rewrite(bundle, live_bytes, len(parts), now_ms, limits)
        if bundle.key in before.asked:
            asked[bundle.key] = before.asked[bundle.key]
        if reason:
            wanted.append(RewriteBundle(bundle.key, tuple(parts), reason))
    rewrites: list[RewriteBundle] = []
    budget = limits.rewrite_bytes
    for rewrite in sorted(wanted, key=lambda rewrite: asked.get(rewrite.key, 0)):
        if budget <= 0 and rewrites:
            break
        budget -= sum(entry.part.size_bytes for entry in rewrite.live)
        asked[rewrite.key] = asked.get(rewrite.key, 0) + 1
        rewrites.append(rewrite)
    return BundlePlan(tuple(deletions), tuple(rewrites), unreferenced, frozenset(referenced), asked)


def _why_rewrite(
    bundle: StoredBundle, live_bytes: int, live_parts: int, now_ms: int, limits: BundleLimits
) -> str | None:
    if live_bytes * 2 < bundle.size_bytes:
        return f"only {live_bytes} of {bundle.size_bytes} bytes are live"
    age_ms = now_ms - bundle.modified_ms
    if age_ms >= limits.max_age_ms and bundle.part_count is not None and bundle.part_count > live_parts:
        return f"{age_ms} ms old and {bundle.part_count - live_parts} of {bundle.part_count} parts are dead"
    return None
