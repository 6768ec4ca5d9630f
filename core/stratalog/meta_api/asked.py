"""What is being asked of each instance, so that it is given up once another one is known to lead.

An instance that was deposed while it hung would else hold its callers until their patience ends, though others know by
then where to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Asked:
    def __init__(self) -> None:
        self._by_url: dict[str, set[Callable[[], None]]] = {}

    @contextmanager
    def at(self, url: str, give_up: Callable[[], None]) -> Iterator[None]:
        """Within it something is asked of `url`; `give_up` ends it, and may be called more than once."""
        asked = self._by_url.setdefault(url, set())
        asked.add(give_up)
        try:
            yield
        finally:
            asked.discard(give_up)
            if not asked and self._by_url.get(url) is asked:
                del self._by_url[url]

    def leave_all_but(self, url: str) -> None:
        for other, asked in list(self._by_url.items()):
            if other != url:
                for give_up in list(asked):
                    give_up()
