"""Counts events of one kind instead of writing a line for each: denials, and offsets that no member commits. Pure.

A client may be denied ten thousand times a second. The first event of a kind is reported at once, so that it is seen
during an attack. Those that follow within a window are counted and reported together at its end. A kind with an
event in a window stays known through the next one, so each kind costs at most one line a window after its first.

    sum of all counts reported, and of those still held = events     (nothing is left out, nothing counted twice)

Bounded: of more than `most_kinds` kinds the further ones are counted together, as one kind.
Cost of an event: a lookup. Of `due`: a pass over the known kinds, once a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.machines.audit.lines import Asker, AuditLine, Change, Outcome, bounded

MOST_KINDS: Final = 1_000
VARIOUS: Final = "*"
"""In place of a principal, an address, an action and a resource, for the events of kinds beyond the bound."""


class EventKind(NamedTuple):
    principal: str
    address: str
    action: str
    resource_type: str
    resource: str
    outcome: Outcome
    error: str = ""


@dataclass(slots=True)
class _Counted:
    """Of one kind, since its last report."""

    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    is_quiet: bool = False
    """Nothing came in the window before this one."""


class EventCounts:
    """Invariant: at most `most_kinds` kinds are known, and one more of each outcome for the rest."""

    def __init__(self, window_ms: int, *, most_kinds: int = MOST_KINDS) -> None:
        self._window_ms = window_ms
        self._most_kinds = most_kinds
        self._known: dict[EventKind, _Counted] = {}
        self._window_ends_ms: int | None = None
        """By the steady clock. None: no kind is known."""

    def note(self, kind: EventKind, now_ms: int, steady_ms: int) -> bool:
        """An event. True: it is the first of its kind, which the caller reports now; False: it is counted here."""
        if len(kind.resource) + len(kind.principal) > 256:
            kind = kind._replace(resource=bounded(kind.resource), principal=bounded(kind.principal))
        counted = self._known.get(kind)
        is_first = counted is None
        if counted is None:
            if len(self._known) >= self._most_kinds:
                is_first = False
                kind = EventKind(VARIOUS, VARIOUS, VARIOUS, VARIOUS, VARIOUS, kind.outcome)
            counted = self._known.setdefault(kind, _Counted())
            if self._window_ends_ms is None:
                self._window_ends_ms = steady_ms + self._window_ms
        counted.is_quiet = False
        if is_first:
            return True
        counted.first_ms = counted.first_ms if counted.count else now_ms
        counted.last_ms = now_ms
        counted.count += 1
        return False

    def due(self, steady_ms: int, *, is_last: bool = False) -> list[AuditLine]:
        """What was counted in a window that has ended. `is_last`: the process ends, and with it the window."""
        if self._window_ends_ms is None or (steady_ms < self._window_ends_ms and not is_last):
            return []
        lines = [_line_of(kind, counted) for kind, counted in self._known.items() if counted.count]
        self._known = {kind: _Counted(is_quiet=True) for kind, one in self._known.items() if not one.is_quiet}
        self._window_ends_ms = steady_ms + self._window_ms if self._known else None
        return lines

    @property
    def known_kinds(self) -> int:
        return len(self._known)


def _line_of(kind: EventKind, counted: _Counted) -> AuditLine:
    return AuditLine(
        counted.first_ms,
        Asker(kind.principal, kind.address),
        Change(kind.action, kind.resource_type, kind.resource),
        kind.outcome,
        kind.error,
        counted.count,
        counted.last_ms,
    )
