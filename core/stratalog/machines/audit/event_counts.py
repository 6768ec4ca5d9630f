"""Counts events of one kind instead of writing a line for each: denials, changes that failed, offsets that no member
commits. Pure.

A client may be denied ten thousand times a second. The first event of a kind is reported at once, so that it is seen
during an attack. Those that follow within a window are counted and reported together at its end. A kind with an
event in a window stays known through the next one, so each kind costs at most one line a window after its first.

    sum of all counts reported, and of those still held = events     (nothing is left out, nothing counted twice)

Bounded: `most_kinds` kinds are known, an asker has a quarter of them, and a principal half (`Shares`). The events of
further kinds are counted together by what they share: an action of an asker; where there are too many askers, an action
of a principal; and the rest as one kind. So whoever uses many names hides these names, but neither himself nor others.
Cost of an event: a lookup, and two more for one beyond the bounds. Of `due`: a pass over the known kinds, once a
window; the lines are made later (`Report.line`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.machines.audit.lines import Asker, AuditLine, Change, Outcome, bounded
from stratalog.machines.audit.shares import Shares

MOST_KINDS: Final = 1_000
VARIOUS: Final = "*"
"""In place of a name that events which are counted together do not share."""


class EventKind(NamedTuple):
    principal: str
    address: str
    action: str
    resource_type: str
    resource: str
    outcome: Outcome
    error: str = ""

    @property
    def asker(self) -> Asker:
        return Asker(self.principal, self.address)


@dataclass(slots=True)
class _Counted:
    """Of one kind, since its last report."""

    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    is_quiet: bool = False
    """Nothing came in the window before this one."""


class Report(NamedTuple):
    """What was counted of a kind in a window."""

    kind: EventKind
    events: int
    first_ms: int
    last_ms: int

    def line(self) -> AuditLine:
        kind = self.kind
        change = Change(kind.action, kind.resource_type, kind.resource)
        return AuditLine(self.first_ms, kind.asker, change, kind.outcome, kind.error, self.events, self.last_ms)


class EventCounts:
    """Invariant: at most `most_kinds` kinds are known, as many actions of askers, as many of principals, and one kind
    of each outcome for the rest."""

    def __init__(self, window_ms: int, *, most_kinds: int = MOST_KINDS) -> None:
        self._window_ms = window_ms
        self._most_kinds = most_kinds
        self._known: dict[EventKind, _Counted] = {}
        self._of_askers: dict[EventKind, _Counted] = {}
        """Of kinds beyond the bounds: by asker and action."""
        self._of_principals: dict[EventKind, _Counted] = {}
        self._of_others: dict[EventKind, _Counted] = {}
        self._shares = Shares(most_kinds)
        self._full: set[tuple[str, str]] = set()
        """Principals and addresses whose shares are used up in this window."""
        self._window_ends_ms: int | None = None
        """By the steady clock. None: no kind is known."""

    def note(self, kind: EventKind, now_ms: int, steady_ms: int) -> bool:
        """An event. True: it is the first of its kind, which the caller reports now; False: it is counted here."""
        if len(kind.resource) + len(kind.principal) > 256:
            kind = kind._replace(resource=bounded(kind.resource), principal=bounded(kind.principal))
        if self._window_ends_ms is None:
            self._window_ends_ms = steady_ms + self._window_ms
        counted = self._known.get(kind)
        if counted is None:
            asker = kind[0], kind[1]
            if asker not in self._full:
                if self._shares.reserve(kind.asker):
                    self._known[kind] = _Counted()
                    return True
                if len(self._full) < self._most_kinds:
                    self._full.add(asker)
            counted = self._beyond(kind)
        counted.is_quiet = False
        counted.first_ms = counted.first_ms if counted.count else now_ms
        counted.last_ms = max(counted.first_ms, now_ms)  # the wall clock may have been set back
        counted.count += 1
        return False

    def _beyond(self, kind: EventKind) -> _Counted:
        """What the event of a kind beyond the bounds is counted with."""
        principal, address, action, of_type, _, outcome, _ = kind
        of_asker = EventKind(principal, address, action, of_type, VARIOUS, outcome)
        if (found := self._of_askers.get(of_asker)) is not None:
            return found
        if len(self._of_askers) < self._most_kinds:
            return self._of_askers.setdefault(of_asker, _Counted())
        of_principal = of_asker._replace(address=VARIOUS)
        if of_principal in self._of_principals or len(self._of_principals) < self._most_kinds:
            return self._of_principals.setdefault(of_principal, _Counted())
        rest = EventKind(VARIOUS, VARIOUS, VARIOUS, VARIOUS, VARIOUS, outcome)
        return self._of_others.setdefault(rest, _Counted())

    def due(self, steady_ms: int, *, is_last: bool = False) -> list[Report]:
        """What was counted in a window that has ended. `is_last`: the process ends, and with it the window."""
        if self._window_ends_ms is None or (steady_ms < self._window_ends_ms and not is_last):
            return []
        reports = []
        for known in (self._known, self._of_askers, self._of_principals, self._of_others):
            reports += [Report(kind, one.count, one.first_ms, one.last_ms) for kind, one in known.items() if one.count]
        for kind in [kind for kind, counted in self._known.items() if counted.is_quiet]:
            del self._known[kind]
            self._shares.give_back(kind.asker)
        for kind in self._known:
            self._known[kind] = _Counted(is_quiet=True)
        for known in (self._of_askers, self._of_principals, self._of_others):
            known.clear()
        self._full.clear()
        self._window_ends_ms = steady_ms + self._window_ms if self._known else None
        return reports

    @property
    def known_kinds(self) -> int:
        return len(self._known)
