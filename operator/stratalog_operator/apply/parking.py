"""Actions that were refused for good are not asked for again at once: 10 s later, then 20 s … 5 min, each by itself.

So one thing that cannot be, which its object says, neither writes without end nor slows down anything else. It is
forgotten as soon as something else is asked for. Nothing but this pace rests on it: it may be lost at any time.

Lives in the operator's event loop, one for a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stratalog.machines.backoff import longest_pause
from stratalog.model.errors import StratalogError
from stratalog_operator.plan.actions import Action
from stratalog_operator.specs.objects import digest

FIRST_S: Final = 10.0
LONGEST_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class _Parked:
    error: StratalogError
    times: int
    """In a row."""
    until: float


class Parking:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parked: dict[str, _Parked] = {}

    def refused(self, action: Action) -> StratalogError | None:
        """Why it was refused, while it is too early to ask again."""
        found = self._parked.get(_name(action)) if self._parked else None
        return found.error if found is not None and self._clock() < found.until else None

    def park(self, action: Action, error: StratalogError) -> None:
        before = self._parked.get(_name(action))
        times = 1 if before is None else before.times + 1
        until = self._clock() + longest_pause(times, FIRST_S, LONGEST_S)
        self._parked[_name(action)] = _Parked(error, times, until)

    def keep(self, actions: tuple[Action, ...]) -> None:
        """Forgets all others."""
        asked = {_name(action) for action in actions} if self._parked else set()
        self._parked = {name: one for name, one in self._parked.items() if name in asked}


def _name(action: Action) -> str:
    return digest(repr(action))
