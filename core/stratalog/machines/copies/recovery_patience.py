"""Limits how long a recovery waits for a replica that is alive and makes no promise.

A node may send heartbeats while its disk hangs: a promise is written to that disk, so it never comes. Health is
measured by progress. A replica is silent once the recovery of a segment has waited for it for `patience_ms`, and no
promise of that node, for any segment, has arrived for as long: a node that is working through ten thousand promises is
not silent. A node whose disk is known to make no progress (`Node.can_write`) is silent at once. The shard table decides
whether a recovery can do without it (`lives.continue_without`); this machine only names the silent replicas.

Time is a monotonic clock of the process that leads the meta service. A new leader begins to count again. Time in which
promises could not arrive does not count: the process did not run, or was not reachable.
The caller checks at least every `CHECKS_PER_PATIENCE`th of the patience. Cost: a step per changed segment, O(1) if no
recovery waits; a check is O(segments whose recovery waits).
Source: docs/replication.md section 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.model.commands.table_commands import ContinueWithout, SilentReplicas
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Life, Node
from stratalog.model.segment import Segment, SegmentState

CHECKS_PER_PATIENCE: Final = 10


@dataclass(slots=True)
class _Wait:
    segment: Segment
    since_ms: int
    """When its recovery was first seen to wait."""
    reported: frozenset[Life] = frozenset()
    """Replicas that are being reported to the table, or were. They are reported again when there are others, or when
    something changed since the report was made: the table may have performed the report before that change."""


def waits_for_promises(segment: Segment) -> bool:
    """Whether a recovery is in progress and not decided yet. Of a Direct segment no replica is asked."""
    if not segment.is_fenced or segment.is_direct:
        return False
    is_undecided = segment.state is SegmentState.SEALING and segment.handed.source is None
    return segment.state is SegmentState.ACTIVE or is_undecided


class RecoveryPatience:
    """The recoveries that wait, and when each node was last seen to make progress."""

    def __init__(self, patience_ms: int, nodes: Iterable[Node], segments: Iterable[Segment], now_ms: int) -> None:
        self.patience_ms = patience_ms
        self._looked_ms = now_ms
        self._waits: dict[SegmentKey, _Wait] = {}
        self._lives: dict[int, Life] = {}
        self._heard_ms: dict[Life, int] = {}
        self._stuck: set[Life] = set()
        self._away: set[Life] = set()
        """Lives that are not alive: no recovery waits for them."""
        for node in nodes:
            self.node_changed(node, now_ms)
        for segment in segments:
            self.segment_changed(segment, now_ms)

    def node_changed(self, node: Node, now_ms: int) -> None:
        """A new life first reads its disk: it gets the whole time, and so does one that was away."""
        before = self._lives.get(node.node_id)
        if before != node.life:
            self._lives[node.node_id] = node.life
            self._heard_ms[node.life] = now_ms
            if before is not None:
                self._heard_ms.pop(before, None)
                self._stuck.discard(before)
                self._away.discard(before)
        if not node.is_alive:
            self._away.add(node.life)
        elif node.life in self._away:
            self._away.discard(node.life)
            self._heard_ms[node.life] = now_ms
        (self._stuck.discard if node.can_write else self._stuck.add)(node.life)
        for wait in self._waits.values():
            wait.reported = frozenset()  # the nodes that are alive now may allow a decision

    def segment_changed(self, segment: Segment, now_ms: int) -> None:
        if not waits_for_promises(segment):
            self._waits.pop(segment.key, None)
            return
        known = self._waits.get(segment.key)
        old_votes = () if known is None else known.segment.handed.votes
        for vote in segment.handed.votes:
            life = Life(vote.node_id, vote.life)
            if vote not in old_votes and life in self._heard_ms:
                self._heard_ms[life] = now_ms
        self._waits[segment.key] = _Wait(segment, now_ms if known is None else known.since_ms)

    def segment_gone(self, key: SegmentKey) -> None:
        self._waits.pop(key, None)

    @property
    def is_idle(self) -> bool:
        """No recovery waits."""
        return not self._waits

    def excuse_silence(self, now_ms: int) -> None:
        """Promises could not arrive since the last check: that time counts against no node."""
        missed_ms, self._looked_ms = max(0, now_ms - self._looked_ms), now_ms
        for wait in self._waits.values():
            wait.since_ms += missed_ms
        for life in self._heard_ms:
            self._heard_ms[life] += missed_ms

    def due(self, now_ms: int) -> ContinueWithout | None:
        """Look at the time. Returns silent replicas that the table was not told about; None without any.

        They are reported again once something changed, or after `not_performed`.
        """
        if now_ms - self._looked_ms > self.patience_ms // 2:
            self.excuse_silence(now_ms)  # this process did not run meanwhile
        self._looked_ms = now_ms
        found: list[SilentReplicas] = []
        for key, wait in self._waits.items():
            silent = frozenset(self._silent(wait, now_ms))
            if silent and silent != wait.reported:
                wait.reported = silent
                found.append(SilentReplicas(key, tuple(sorted(silent, key=lambda life: life.node_id))))
        return ContinueWithout(tuple(found)) if found else None

    def not_performed(self, command: ContinueWithout) -> None:
        """The table did not perform it, or perhaps did not: the next check reports it again."""
        for one in command.silent:
            if (wait := self._waits.get(one.segment)) is not None:
                wait.reported = frozenset()

    def _silent(self, wait: _Wait, now_ms: int) -> Iterable[Life]:
        answered = {Life(vote.node_id, vote.life) for vote in wait.segment.handed.votes}
        for node_id in wait.segment.replicas:
            life = self._lives.get(node_id)
            if life is None or life in answered or life in self._away:
                continue
            if life in self._stuck or now_ms - max(wait.since_ms, self._heard_ms[life]) >= self.patience_ms:
                yield life
