"""Other nodes as shards use them: reads of sealed segments that those nodes proved.

Threads: called on the node's event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from stratalog.model.errors import Unavailable
from stratalog.model.segment import Segment


class PeerBusy(Unavailable):
    """A node answers, and checks the file of this segment first: it is asked again, and nothing is known of it yet."""


MOST_LOOKS: Final = 32
"""At a time: who looks asks for no more, so that no look waits for a place while its own time runs."""


class PeerRefused(Unavailable):
    """A node answers, and does not serve this segment for now."""


class PeerReads(Protocol):
    def holders(self, segment: Segment) -> tuple[Sequence[int], Sequence[int]]:
        """Living nodes that proved their copy and may be asked now: those in this node's rack, and the others."""
        ...

    async def read(self, segment: Segment, nodes: Sequence[int], offset: int, max_bytes: int) -> bytes | memoryview:
        """Whole batches from the one that contains `offset`, checked: at least one, else at most `max_bytes`. Of the
        first of `nodes` that gives them. Raises: Unavailable; `PeerRefused` where all of them answered, and none gives
        them."""
        ...

    async def probe(self, segment: Segment, node_id: int, offset: int) -> None:
        """Ask a node whether it can read the batch that contains `offset`, apart from all other reads: under limits of
        its own, with one request per call. Raises: Unavailable, PeerRefused, PeerBusy."""
        ...

    async def find_by_time(
        self, segment: Segment, nodes: Sequence[int], timestamp_ms: int, from_offset: int
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record from an offset on with that time or a later one. Raises:
        Unavailable."""
        ...

    async def producer_table(self, segment: Segment, nodes: Sequence[int]) -> bytes:
        """The table at the segment's end, unchecked, from the first of `nodes` that has it. Raises: Unavailable."""
        ...
