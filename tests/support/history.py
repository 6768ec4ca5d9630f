"""Compares the contents of a log with the answers that clients got: a pure function from a history to its anomalies.

A history is a list of sends, each with a unique value, and how it ended: `OK` with the offset that was acknowledged,
`FAIL` (refused for sure), or `INFO` (no answer, a time-out: it may or may not have happened). A log is what a reader
got of one shard, in the order it came.

An INFO value may be there once, or not at all. Every other difference is named:

lost          acknowledged, at or above the log start, and not read
misplaced     acknowledged at one offset, read at another
aborted       refused for sure, and read
duplicate     one value at two offsets
reordered     values of one sender in another order than they were sent
phantom       read, and never sent to this shard
gap           an offset between two that were read was skipped, or the log does not begin at its start
backwards     a reader's offsets fall or repeat
inconsistent  two reads of one offset gave different values
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

Place = tuple[str, int]
"""Topic and shard."""


class Outcome(Enum):
    OK = "acknowledged"
    FAIL = "refused for sure"
    INFO = "may or may not have happened"


@dataclass(slots=True)
class Sent:
    """One send. Sends of one sender to one place are listed in the order they were made."""

    sender: str
    place: Place
    value: bytes
    outcome: Outcome = Outcome.INFO
    offset: int = -1
    """Also of one that was acknowledged without: a repetition may be."""


class Seen(NamedTuple):
    """One record as a reader got it."""

    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Log:
    """One pass of a reader over one shard, from its log start on."""

    start_offset: int
    records: Sequence[Seen]


class Anomaly(NamedTuple):
    kind: str
    place: Place
    detail: str
    offsets: tuple[int, ...] = ()
    """Of a duplicate."""

    def __str__(self) -> str:
        return f"{self.kind} in {self.place[0]}-{self.place[1]}: {self.detail}"


def anomalies(sent: Iterable[Sent], logs: Mapping[Place, Log]) -> list[Anomaly]:
    """Everything the logs show that the history does not allow; empty when all is well.

    Requires: values are unique over the whole history; `logs` has every shard that was sent to, read to its end.
    """
    found: list[Anomaly] = []
    by_place: dict[Place, list[Sent]] = defaultdict(list)
    for send in sent:
        by_place[send.place].append(send)
    for place in {*by_place, *logs}:
        log = logs.get(place)
        if log is None:
            if any(send.outcome is Outcome.OK for send in by_place[place]):
                found.append(Anomaly("lost", place, "the whole shard was not read"))
            continue
        found += _order_of_reading(place, log)
        found += _against_history(place, log, by_place[place])
    return sorted(found)


def differences(place: Place, before: Iterable[Seen], after: Iterable[Seen]) -> list[Anomaly]:
    """Offsets that two reads of one shard show with different values."""
    values = {seen.offset: seen.value for seen in before}
    return [
        Anomaly("inconsistent", place, f"offset {seen.offset} was {values[seen.offset]!r}, then {seen.value!r}")
        for seen in after
        if values.get(seen.offset, seen.value) != seen.value
    ]


def _order_of_reading(place: Place, log: Log) -> list[Anomaly]:
    found = []
    expected = log.start_offset
    for seen in log.records:
        if seen.offset < expected:
            found.append(Anomaly("backwards", place, f"offset {seen.offset} came where {expected} was due"))
        elif seen.offset > expected:
            found.append(Anomaly("gap", place, f"offsets {expected} to {seen.offset - 1} are missing"))
        expected = max(expected, seen.offset + 1)
    return found


def _against_history(place: Place, log: Log, sent: Sequence[Sent]) -> list[Anomaly]:
    found = []
    offsets: dict[bytes, list[int]] = defaultdict(list)
    for seen in log.records:
        offsets[seen.value].append(seen.offset)
    known = {send.value: send for send in sent}
    for value, places in offsets.items():
        send = known.get(value)
        if send is None:
            found.append(Anomaly("phantom", place, f"{value!r} at offset {places[0]} was never sent here"))
        elif send.outcome is Outcome.FAIL:
            found.append(Anomaly("aborted", place, f"{value!r} at offset {places[0]} had been refused"))
        if len(set(places)) > 1:
            found.append(Anomaly("duplicate", place, f"{value!r} at offsets {places}", tuple(places)))
    for send in sent:
        if send.outcome is Outcome.OK and (send.offset >= log.start_offset or log.start_offset == 0):
            places = offsets.get(send.value, [])
            if not places:
                found.append(Anomaly("lost", place, f"{send.value!r}, acknowledged at offset {send.offset}"))
            elif send.offset >= 0 and send.offset not in places:
                found.append(Anomaly("misplaced", place, f"{send.value!r}: told {send.offset}, read at {places[0]}"))
    return found + _order_of_senders(place, offsets, sent)


def _order_of_senders(place: Place, offsets: Mapping[bytes, list[int]], sent: Sequence[Sent]) -> list[Anomaly]:
    found = []
    last: dict[str, tuple[int, bytes]] = {}
    for send in sent:
        places = offsets.get(send.value)
        # What retention has taken still has its acknowledged offset; a duplicate has an anomaly of its own.
        offset = places[0] if places else send.offset
        if offset < 0:
            continue
        before = last.get(send.sender)
        if before is not None and offset <= before[0]:
            found.append(
                Anomaly(
                    "reordered",
                    place,
                    f"{send.sender} sent {before[1]!r} (offset {before[0]}) before {send.value!r} (offset {offset})",
                )
            )
        last[send.sender] = (offset, send.value)
    return found
