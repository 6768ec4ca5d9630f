"""How much of Direct segments may wait for the object store on this node.

Their producers wait for all of it, and while the store is away no producer is answered: what waits has a limit. The
uploader counts it each time that it looks; what is written in between is added. The uploader knows no segment before
the metadata list it. While the store is away no roll is confirmed, so what is written behind one is counted here. Lives
on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.model.ids import SegmentKey


class DirectRoom:
    __slots__ = ("_unlisted", "limit_bytes", "unstored_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.unstored_bytes = 0
        self._unlisted: dict[SegmentKey, SegmentLeader] = {}
        """What was begun behind rolls that are not confirmed."""

    def wrote(self, leader: SegmentLeader, size_bytes: int) -> None:
        self.unstored_bytes += size_bytes
        if not leader.is_confirmed:
            self._unlisted[leader.key] = leader

    def counted(self, unstored_bytes: int, is_over: Callable[[SegmentKey], bool]) -> None:
        """The uploader counts so much of the segments that it knows. `is_over`: it knows this one by now, or the node
        has none of it any more."""
        for key in [key for key in self._unlisted if is_over(key)]:
            del self._unlisted[key]
        self.unstored_bytes = unstored_bytes + sum(leader.size_bytes for leader in self._unlisted.values())

    @property
    def is_full(self) -> bool:
        return self.unstored_bytes >= self.limit_bytes

    @property
    def why(self) -> str:
        return (
            f"{self.unstored_bytes} bytes of Direct topics wait for the object store on this node, at or above "
            f"direct.max.unacknowledged.bytes={self.limit_bytes}: writes continue by themselves once it has some"
        )
