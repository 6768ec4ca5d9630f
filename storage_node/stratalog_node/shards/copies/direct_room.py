"""How much of Direct segments may wait for the object store on this node.

Their producers wait for all of it, and while the store is away no producer is answered: what waits has a limit. The
uploader counts it each time that it looks; what is written in between is added. Lives on the event loop.
"""

from __future__ import annotations


class DirectRoom:
    __slots__ = ("limit_bytes", "unstored_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.unstored_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.unstored_bytes >= self.limit_bytes

    @property
    def why(self) -> str:
        return (
            f"{self.unstored_bytes} bytes of Direct topics wait for the object store on this node, at or above "
            f"direct.max.unacknowledged.bytes={self.limit_bytes}: writes continue by themselves once it has some"
        )
