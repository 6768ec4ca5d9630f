"""Whose turn it is among the topics of a cluster that have something to do or to be told: so many in a pass.

A pass over hundreds of topics would keep the operator from looking at anything else of that cluster, a pod that died or
a scale, until the last of them is done. One that fails each time takes its turn, and not the others'.

Lives in the operator's event loop, one for a cluster. It may be lost at any time: the first names then come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

MOST_IN_A_PASS: Final = 50


class Rounds:
    def __init__(self, most: int = MOST_IN_A_PASS) -> None:
        self._most = most
        self._last = ""

    def take(self, names: Iterable[str]) -> tuple[frozenset[str], int]:
        """Those whose turn it is, and how many are left for later passes."""
        waiting = sorted(set(names))
        at = bisect_right(waiting, self._last)
        taken = [*waiting[at:], *waiting[:at]][: self._most]
        self._last = taken[-1] if taken else ""
        return frozenset(taken), len(waiting) - len(taken)
