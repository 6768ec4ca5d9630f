"""Logs and counts what the shard table concluded about copies: leaders replaced, ranges given up, copies that differ.

Follows the durable changes, as a watcher does. Each leading process logs a segment's news once. After another process
took over, it logs what is still in a record again when that record changes. One change may replace the leaders of
thousands of segments when a node dies: a few are named, the others counted. Lives on the service's event loop. Cost:
one check per changed segment; memory only for segments in trouble.
"""

from __future__ import annotations

from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import ChangeSet, SegmentChanged, SegmentPurged
from stratalog.model.segment import Segment, SegmentState
from stratalog.telemetry.logs import logger
from stratalog_meta.stats import MetaStats

_log = logger(__name__)

NAMED = 10
"""Of the same news in one change."""


class RecoveryNews:
    def __init__(self, stats: MetaStats) -> None:
        self._stats = stats
        self._told: dict[SegmentKey, set[object]] = {}

    def follow(self, change_set: ChangeSet) -> None:
        """A durable change."""
        lost: list[Segment] = []
        for change in change_set.changes:
            if isinstance(change, SegmentChanged):
                segment = change.segment
                if segment.handover is not None or segment.is_fenced:
                    self._check_segment(segment, lost)
            elif isinstance(change, SegmentPurged):
                self._told.pop(change.key, None)
        for segment in lost[:NAMED]:
            _log.warning("segment lost its leader", segment=str(segment.key), isr=segment.isr)
        if len(lost) > NAMED:
            _log.warning("more segments lost their leaders", in_all=len(lost), not_named=len(lost) - NAMED)

    def _check_segment(self, segment: Segment, lost: list[Segment]) -> None:
        logged = self._told.setdefault(segment.key, set())
        is_open = segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)
        if segment.is_fenced and is_open and "fence" not in logged:
            logged.add("fence")
            self._stats.recoveries += 1
            lost.append(segment)
        for gap in segment.handed.given_up:
            if gap not in logged:
                logged.add(gap)
                self._stats.ranges_given_up += 1
                if gap.base_offset == gap.end_offset:
                    write = _log.warning
                    words = "disks that had the end of a segment are gone: nothing is known to be lost"
                else:
                    write, words = _log.error, "offsets are given up: they are stored nowhere"
                write(
                    words,
                    segment=str(segment.key),
                    base_offset=gap.base_offset,
                    end_offset=gap.end_offset,
                    reason=gap.reason.value,
                )
        for report in segment.handed.reports:
            if report.node_id not in segment.replicas and report.node_id not in logged:
                logged.add(report.node_id)
                self._stats.copies_differing += 1
                _log.error(
                    "copy differs from the sealed segment",
                    segment=str(segment.key),
                    node_id=report.node_id,
                    digest=report.digest.hex(),
                )
        if not logged:
            del self._told[segment.key]
