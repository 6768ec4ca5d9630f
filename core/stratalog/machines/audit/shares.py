"""What one asker may take of something bounded, so that no one takes the place of all others. Pure.

An asker (a principal at an address) has at most a quarter of it, and a principal half, from however many addresses.
"""

from __future__ import annotations

from stratalog.machines.audit.lines import Asker


class Shares:
    """Of a bound of `most`. Invariant: only askers that hold something are known."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._by: dict[Asker | str, int] = {}
        """By asker, and by principal alone."""

    def reserve(self, asker: Asker, amount: int = 1) -> bool:
        """False: neither the asker, nor its principal, nor all together may have so much more; nothing is taken."""
        taken, most = self._by, self._most
        if (
            self._taken + amount > most
            or taken.get(asker, 0) + amount > most // 4
            or taken.get(asker.principal, 0) + amount > most // 2
        ):
            return False
        self._add(asker, amount)
        return True

    def give_back(self, asker: Asker, amount: int = 1) -> None:
        """Requires: it was taken."""
        self._add(asker, -amount)

    def _add(self, asker: Asker, amount: int) -> None:
        self._taken += amount
        for who in (asker, asker.principal):
            left = self._by.get(who, 0) + amount
            if left:
                self._by[who] = left
            else:
                del self._by[who]
