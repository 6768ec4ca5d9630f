"""A request's place in its connection's queue of answers, until its reply has been sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Answer:
    """A place in the line of answers. `buffers` is None until it is ready; `release` runs once it was sent or
    dropped."""

    __slots__ = ("buffers", "held_bytes", "kept_bytes", "release")

    on_first: Callable[[], None] | None = None
    """For answers that wait for their turn: called once, when all earlier answers are ready."""

    def __init__(self) -> None:
        self.buffers: list[Any] | None = None
        self.held_bytes = 0
        """What it told `Connection.hold`."""
        self.kept_bytes = 0
        """And `Connection.keep`, as long as that is so."""
        self.release: Callable[[], None] | None = None

    def let_go(self) -> Callable[[], None] | None:
        """Its `release`, which is the caller's to call from now on. It mostly knows this answer: one that held on to it
        would lie there with all its bytes until the collector looks, which it seldom does."""
        release, self.release = self.release, None
        return release


class Parkable(Answer):
    """An answer that may have to wait until its connection has room for it."""

    __slots__ = ()

    def has_room(self) -> bool:
        """Whether it may continue now."""
        raise NotImplementedError

    def unpark(self) -> bool:
        """There may be room: look again, then call `wake_parked`. False: it needs no room any more."""
        raise NotImplementedError
