"""Asks the meta service to move commit offsets and parts, and finds out what became of a commit.

A commit without an answer is repeated: the same commit twice is one commit, and reading the metadata shows whether a
compare-and-set was lost. This does not decide anything: a `Moved`, `Gone` or `Unreadable` says what the metadata say.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from stratalog.machines.tiering.upload_events import Gone, Moved, PieceOutcome, Unreadable, UploadLimits
from stratalog.meta_api.client import MetaClient
from stratalog.model.commands.table_commands import CommitParts, ReplaceParts
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock, PartCommit, PartReplacement
from stratalog.model.segment import RemotePart, RemoteState, Segment, SegmentState
from stratalog_node.backoff import Backoff
from stratalog_node.tier.store.stats import TierStats

R = TypeVar("R")
Change = PartCommit | PartReplacement

COMMIT_SLICE = 1_000
"""Parts of one transaction. Each stands alone anyway; a larger one would hold up the meta service's loop."""
_ATTEMPTS = 6


class MetaAway(Exception):
    """The meta service did not answer for a while; what was asked may or may not have been done."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What metadata says of one change: the segment, None when it is gone, or why it was refused."""

    change: Change
    segment: Segment | None
    refusal: str | None = None


class Committer:
    """Raises Fenced when the lock is lost, MetaAway after patience."""

    def __init__(self, meta: MetaClient, limits: UploadLimits, rng: random.Random, stats: TierStats) -> None:
        self._meta = meta
        self._limits = limits
        self._rng = rng
        self._stats = stats

    async def commit(self, lock: Lock, changes: Sequence[Change]) -> list[Committed]:
        """Commit new parts and replacements; the outcomes are in the order given."""
        appends = [change for change in changes if isinstance(change, PartCommit)]
        moves = [change for change in changes if isinstance(change, PartReplacement)]
        answers: dict[SegmentKey, Segment | StratalogError] = {}
        for some_appends in _slices(appends):
            found = await self.insist(partial(self._meta.perform, CommitParts(lock, some_appends)))
            answers.update(zip((commit.segment for commit in some_appends), found, strict=True))
        for some_moves in _slices(moves):
            found = await self.insist(partial(self._meta.perform, ReplaceParts(lock, some_moves)))
            answers.update(zip((move.segment for move in some_moves), found, strict=True))
        refused = {key for key, answer in answers.items() if not isinstance(answer, Segment)}
        self._stats.commits_lost += len(refused)
        now = await self.read_segments(refused) if refused else {}
        outcomes = []
        for change in changes:
            answer = answers[change.segment]
            if isinstance(answer, Segment):
                outcomes.append(Committed(change, answer))
            else:
                outcomes.append(Committed(change, now.get(change.segment), str(answer)))
        return outcomes

    async def read_segments(self, keys: Iterable[SegmentKey]) -> dict[SegmentKey, Segment]:
        """The present metadata of those of the segments that there are. Cost: a snapshot."""
        wanted = set(keys)
        snapshot = await self.insist(self._meta.snapshot)
        shard_keys = {key.shard_key for key in wanted}
        return {
            segment.key: segment
            for shard in snapshot.shards
            if shard.key in shard_keys
            for segment in shard.segments
            if segment.key in wanted
        }

    async def insist(self, call: Callable[[], Awaitable[R]]) -> R:
        """Ask until there is an answer: only for calls that are harmless when repeated."""
        limits = self._limits
        last: Exception = TimeoutError()
        backoff = Backoff(2 * limits.backoff_ms / 1_000, limits.backoff_cap_ms / 1_000, jitter=self._rng.random)
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._stats.commits_repeated += 1
                await backoff.pause()
            try:
                async with asyncio.timeout(limits.call_timeout_ms / 1_000):
                    return await call()
            except (Unavailable, OutcomeUnknown, TimeoutError) as error:
                last = error
        raise MetaAway(f"meta service: no answer after {_ATTEMPTS} attempts: {last!r}") from last


def outcome_of(committed: Committed) -> PieceOutcome:
    """What a commit's answer means for the uploader. Whoever tells it counts the unsent bytes."""
    change, segment = committed.change, committed.segment
    key = change.segment
    if segment is None or segment.state is SegmentState.DELETED or segment.remote.state is RemoteState.COMPLETE:
        return Gone(key)
    offset = max(segment.remote.commit_offset, segment.base_offset)
    if committed.refusal is not None and _is_unchanged(change, segment):
        # Refused though nothing moved: asking again at once would be refused again.
        return Unreadable(key, f"the meta service refuses the commit: {committed.refusal}", is_final=False)
    return Moved(key, offset, segment.remote.parts, 0, is_ours=committed.refusal is None)


def _is_unchanged(change: Change, segment: Segment) -> bool:
    if isinstance(change, PartCommit):
        return max(segment.remote.commit_offset, segment.base_offset) == change.expected_commit_offset
    present: set[RemotePart] = set(segment.remote.parts)
    return all(part in present for part in change.old)


def _slices(changes: Sequence[R]) -> list[tuple[R, ...]]:
    return [tuple(changes[start : start + COMMIT_SLICE]) for start in range(0, len(changes), COMMIT_SLICE)]
