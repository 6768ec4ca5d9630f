"""The byte budget of frames that are being received, and of complete requests that wait. Lives on the event loop;
nothing here blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ByteBudget:
    """Bounds the bytes of frames that are being received, for all connections together.

    A connection without a share waits in a queue and is not read meanwhile. The first in the queue may exceed the
    budget while no other connection makes progress, one at a time: otherwise many half-received large frames could hold
    the whole budget and none could complete.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.kept_bytes = 0
        """Bytes of complete requests that wait. None of them is refused, but above the limit the node stops reading
        from clients that have several."""
        self._waiting: deque[tuple[object, int, Callable[[], None]]] = deque()
        self._overdrawn_by: object | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_crowded(self) -> bool:
        return self.kept_bytes > self.limit_bytes

    def reserve(self, owner: object, size_bytes: int, resume: Callable[[], None]) -> bool:
        """True: granted. False: `resume` is called once it has been granted."""
        if owner is self._overdrawn_by or (not self._waiting and self.used_bytes + size_bytes <= self.limit_bytes):
            self.used_bytes += size_bytes
            return True
        if self._overdrawn_by is None and not self._waiting:
            self._overdrawn_by = owner
            self.used_bytes += size_bytes
            return True
        self._waiting.append((owner, size_bytes, resume))
        return False

    def take_if_free(self, size_bytes: int) -> bool:
        """For those who can do with less: no place in line, no overdraft."""
        if self._waiting or self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def release(self, owner: object, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._overdrawn_by is owner:
            self._overdrawn_by = None
        self._serve_line()

    def abandon(self, owner: object) -> None:
        """The owner is gone: it waits no longer."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)
        if self._overdrawn_by is owner:
            self._overdrawn_by = None
        self._serve_line()

    def _serve_line(self) -> None:
        while self._waiting:
            owner, size_bytes, resume = self._waiting[0]
            if self.used_bytes + size_bytes > self.limit_bytes:
                if self._overdrawn_by is not None:
                    return
                self._overdrawn_by = owner
            self._waiting.popleft()
            self.used_bytes += size_bytes
            resume()
