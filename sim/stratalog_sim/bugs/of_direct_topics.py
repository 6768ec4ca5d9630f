"""Bugs of Direct topics."""

from __future__ import annotations

from typing import Any

from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.segment import Segment
from stratalog_sim.planting import Patch


def acknowledged_when_written() -> list[Patch]:
    """The leader of a Direct segment does not wait for the object store."""

    def hear_of_store(self: Any, record: Any) -> bool:
        is_news = heard(self, record)
        self.stored_end = 1 << 62
        return is_news

    heard = SegmentLeader._hear_of_store
    return [(SegmentLeader, "_hear_of_store", hear_of_store)]


def continued_after_a_start() -> list[Patch]:
    """A leader that starts again continues its Direct segment, as one without followers does."""
    return [(Segment, "is_shared", property(lambda self: len(self.replicas) > 1 or self.is_fenced))]
