"""Chooses which topics and users of a cluster a pass handles, among those with something to do or to report: a limited
number of them.

A pass over hundreds of them would delay everything else of that cluster, such as a dead pod or a new number of
replicas, until the last one is done. One that always fails costs only its own turn. Rights that are taken away have
turns of their own: they never wait for those that are given. So have passwords and certificates that are renewed: when
those of thousands of users are due at once, new topics and users do not wait for them.

Lives in the operator's event loop, one for each cluster. It holds no state that must survive: after a restart the first
ones come first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Final

from stratalog_operator.plan.failures import Subject

MOST_IN_A_PASS: Final = 50
MOST_RENEWED: Final = 20
"""Each costs a key or a password hash, and three requests."""


class Turns:
    def __init__(self, most: int = MOST_IN_A_PASS) -> None:
        self._revoking, self._others = _Round(most), _Round(most)
        self._renewing = _Round(MOST_RENEWED)

    def choose(
        self,
        subjects: Iterable[Subject],
        revoking: Collection[Subject] = (),
        renewing: Collection[Subject] = (),
    ) -> tuple[frozenset[Subject], int]:
        """`revoking`: those of which something takes rights away; `renewing`: those that only get another password or
        certificate in the place of the one that they have. At most `most` of the first and of the others, and
        `MOST_RENEWED` of the second.

        Returns: those of this pass, and how many are left for later passes."""
        waiting = set(subjects)
        first = waiting & set(revoking)
        renewed = (waiting & set(renewing)) - first
        taken = self._revoking.choose(first) | self._renewing.choose(renewed)
        taken |= self._others.choose(waiting - first - renewed)
        return taken, len(waiting) - len(taken)


class _Round:
    def __init__(self, most: int) -> None:
        self._most = most
        self._last: Subject = ("", "")

    def choose(self, subjects: Iterable[Subject]) -> frozenset[Subject]:
        waiting = sorted(subjects)
        at = bisect_right(waiting, self._last)
        taken = [*waiting[at:], *waiting[:at]][: self._most]
        self._last = taken[-1] if taken else ("", "")
        return frozenset(taken)
