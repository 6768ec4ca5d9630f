"""The log of a table: what makes files the rows of a Delta or Iceberg table, for readers of these formats.

An archive puts files first, under names that follow from the work (`archive_table.py`). They become rows by a commit to
the table's log, which names the files and, in the same commit, the seals of their segments. The table remembers each
seal forever, so a commit that was made is found by whoever tries again: after a kill, a lost answer, beside others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from stratalog.machines.backoff import longest_pause
from stratalog.model.errors import Unavailable

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
MARK: Final = "stratalog.archived."
"""Comes before a seal's name in the memory of a table."""
_TRIES: Final = 20
"""To commit: each that is lost to another job means that this one got on."""
_TIMEOUT_S: Final = 180
"""For a store that takes no commit; after that no attempt is begun."""
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class FileMade:
    """A Parquet file as it lies there, whoever put it."""

    key: str
    time: str | None
    """Of its partition; None for records whose time is unknown or beyond the calendar, and for dead letters."""
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """All files of a segment; none where it had no such records. `fields`: the settled schema of its rows."""

    seal: str
    fields: Any
    data: tuple[FileMade, ...]
    dead: tuple[FileMade, ...]


@dataclass(frozen=True, slots=True)
class FieldIds:
    """The fields of rows and of dead letters with the ids that the table gives them, as serialized Arrow schemas."""

    data: bytes
    dead: bytes


class TableLog(Protocol):
    def prepare(self, fields: Any) -> FieldIds | None:
        """Before files are written: makes the table, and its columns for these settled fields. None: files of this
        format name no ids. Raises: as `commit`."""
        ...

    def commit(self, segments: Sequence[SegmentFiles]) -> None:
        """Makes the segments' records rows of the table, each exactly once.

        Raises: Unavailable if it failed or its outcome is unknown, which the next job finds out; Conflict for a table
        that another program made, or that was changed so that it cannot be continued.
        """
        ...


def one_line(error: BaseException) -> str:
    """What a library said, without its line breaks and colours."""
    return " ".join(_COLOUR.sub("", str(error) or type(error).__name__).split())[:400]


def commit_in_turn(place: str, attempt: Callable[[], bool], lost: tuple[type[Exception], ...]) -> None:
    """Beside other jobs: one that loses to another tries again, after a pause. Blocking.

    `attempt` returns whether the table has all of it, as read from the table; when it has not, after a commit that
    was taken, it is asked again at once. `lost`: what it raises when it lost, was refused, or heard no answer.
    Raises: Unavailable after too many, or too long.
    """
    last: BaseException | None = None
    begun, attempts = time.monotonic(), 0
    while attempts < _TRIES and time.monotonic() - begun < _TIMEOUT_S:
        attempts += 1
        try:
            if attempt():
                return
        except lost as error:
            last = error
            time.sleep(longest_pause(attempts, _FIRST_PAUSE_S, _LONGEST_PAUSE_S))
    why = one_line(last) if last else "other jobs were faster"
    raise Unavailable(
        f"{place} took no commit in {attempts} attempts ({why}): run the job again, which finds what was committed"
    )
