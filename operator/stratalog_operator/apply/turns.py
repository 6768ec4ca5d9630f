"""Chooses which topics and users of a cluster a pass handles, among those with something to do or to report: at most
`most` of them.

A pass over hundreds of them would delay everything else of that cluster, such as a dead pod or a new number of
replicas, until the last one is done. One that always fails costs only its own turn.

Lives in the operator's event loop, one for each cluster. It holds no state that must survive: after a restart the first
ones come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from stratalog_operator.plan.failures import Subject

MOST_IN_A_PASS: Final = 50


class Turns:
    def __init__(self, most: int = MOST_IN_A_PASS) -> None:
        self._most = most
        self._last: Subject = ("", "")

    def choose(self, subjects: Iterable[Subject]) -> tuple[frozenset[Subject], int]:
        """Returns: those of this pass, and how many are left for later passes."""
        waiting = sorted(set(subjects))
        at = bisect_right(waiting, self._last)
        taken = [*waiting[at:], *waiting[:at]][: self._most]
        self._last = taken[-1] if taken else ("", "")
        return frozenset(taken), len(waiting) - len(taken)
