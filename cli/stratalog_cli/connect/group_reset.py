"""Computes where a group continues after a reset. Pure, except for parsing times (`moments`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stratalog.model.errors import InvalidRequest
from stratalog.settings.units import parse_duration_ms
from stratalog_cli.terminal.moments import parse_time_ms


class To(StrEnum):
    OFFSET = "offset"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Goal:
    to: To
    offset: int | None = None
    time_ms: int | None = None


class Bounds(NamedTuple):
    start: int
    end: int


def goal_of(
    offset: int | None, is_earliest: bool, is_latest: bool, time: str | None, back: str | None, now_ms: int
) -> Goal:
    """The goal that the options name. Raises: InvalidRequest unless exactly one is given."""
    given = [offset is not None, is_earliest, is_latest, time is not None, back is not None]
    if sum(given) != 1:
        raise InvalidRequest(
            "say where to, once: --to-offset N, --to-earliest, --to-latest, --to-time TIME or --by-duration DURATION"
        )
    if offset is not None:
        return Goal(To.OFFSET, offset)
    if time is not None:
        return Goal(To.TIME, time_ms=parse_time_ms(time, "--to-time"))
    if back is not None:
        return Goal(To.TIME, time_ms=now_ms - parse_duration_ms(back, "--by-duration"))
    return Goal(To.EARLIEST if is_earliest else To.LATEST)


def new_offset(goal: Goal, bounds: Bounds, at_time: int | None) -> int:
    """`at_time` is the first offset of the goal's time; negative, or None, where no record is as late."""
    match goal.to:
        case To.EARLIEST:
            return bounds.start
        case To.LATEST:
            return bounds.end
        case To.OFFSET:
            assert goal.offset is not None, "a goal by offset has one"
            return min(max(goal.offset, bounds.start), bounds.end)
        case To.TIME:
            return bounds.end if at_time is None or at_time < 0 else min(max(at_time, bounds.start), bounds.end)
