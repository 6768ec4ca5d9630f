"""Schedules in cron's five fields, read as Kubernetes reads those of a CronJob: what is wrong with one, and when it is
due next.

Kubernetes uses robfig/cron: minute, hour, day of the month, month, day of the week (0 is Sunday, and 7 is refused);
lists, ranges, steps, names of months and days, and `@daily` and its like. If both days are restricted, either is
enough. A time that a change of clocks skips is not due on that day.

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM: Final = re.compile(r"(\*|\?|[0-9a-z]{1,3}(?:-[0-9a-z]{1,3})?)(?:/([0-9]{1,3}))?")
_LONGEST: Final = 100
_MOST_DAYS: Final = 366 * 8 + 2
"""Within this many days every day of a calendar comes: 29 February may be eight years away."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 6, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    month_days: frozenset[int]
    months: frozenset[int]
    week_days: frozenset[int]
    is_any_day: bool
    """One of the two fields of days is a star: then both must match, else one of them."""

    def is_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.month_days, day.isoweekday() % 7 in self.week_days
        return in_month and in_week if self.is_any_day else in_month or in_week

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """The first time after `moment` at which it is due, in UTC; None: it never is (30 February)."""
        day = moment.astimezone(zone).date()
        for _ in range(_MOST_DAYS):
            if self.is_on(day):
                for hour in self.hours:
                    for minute in self.minutes:
                        local = datetime.combine(day, time(hour, minute), zone)
                        due = local.astimezone(UTC)
                        if due > moment and due.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
                            return due
            if day == date.max:
                return None
            day += timedelta(days=1)
        return None


def parse_schedule(text: str) -> Schedule:
    """Raises: ValueError, whose text says which field is wrong."""
    words = _MACROS.get(text.strip().lower(), text).split()
    if text.strip().startswith("@every"):
        raise ValueError("@every is not supported: its times depend on when the operator made the CronJob")
    if len(text) > _LONGEST or len(words) != len(_FIELDS):
        raise ValueError(
            "expected five fields (minute, hour, day of the month, month, day of the week) or @daily, "
            f"not {text!r:.120}"
        )
    minutes, hours, month_days, months, week_days = (
        _numbers(word.lower(), field) for word, field in zip(words, _FIELDS, strict=True)
    )
    return Schedule(
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        month_days,
        months,
        week_days,
        is_any_day=_is_star(words[2]) or _is_star(words[4]),
    )


def _is_star(word: str) -> bool:
    """A step takes the star its meaning, as in Kubernetes."""
    return any(item in ("*", "?", "*/1", "?/1") for item in word.split(","))


def _numbers(word: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    for item in word.split(","):
        matched = _ITEM.fullmatch(item)
        if matched is None:
            raise ValueError(f"{field.name}: {item!r:.40} is neither a number, a range, a step nor *")
        span, step = matched.group(1), int(matched.group(2) or 1)
        if span in ("*", "?"):
            low, high = field.low, field.high
        else:
            first, dash, last = span.partition("-")
            low = _number(first, field)
            # A number with a step counts from there to the end.
            high = _number(last, field) if dash else field.high if matched.group(2) else low
        if low > high or not step:
            raise ValueError(f"{field.name}: {item!r:.40} is empty")
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _number(text: str, field: _Field) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    if not text.isdecimal() or not field.low <= int(text) <= field.high:
        raise ValueError(f"{field.name}: {text!r:.40} is not in {field.low} to {field.high}")
    return int(text)
