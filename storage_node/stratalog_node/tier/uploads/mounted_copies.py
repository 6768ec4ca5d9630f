"""Reads what this node uploads without having its files: sealed segments in the directories of retired nodes, whose
mounts it holds. They are read as a consumer's reads are, from the process that serves the directory, and each range is
checked on its way.

`machines.tiering.mounted_uploads` decides which segments these are, and why one cannot be read now. Lives on the event
loop; batches are parsed on the encoder's thread. Memory: a piece, and a read from another node.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.formats.batches.record_batch import walk
from stratalog.machines.tiering.mounted_uploads import MountedCopy, most_unsent_bytes, mounted_copy
from stratalog.machines.tiering.upload_events import Piece
from stratalog.model.batch import BatchHeader
from stratalog.model.errors import Corrupt, NotFound, Unavailable
from stratalog.model.segment import Segment
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.peer_reads import PeerReads, PeerRefused
from stratalog_node.shards.copies.shard_view import LogRange
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.encoder import Encoder


class DirectoryAway(Exception):
    """No process serves the directory now, or it did not answer: the next attempt for all its segments waits."""


@dataclass(frozen=True, slots=True)
class MountedCopies:
    node_id: int
    catalog: Catalog
    peers: PeerReads | None
    """None on a node that is alone."""
    encoder: Encoder
    stats: TierStats

    def of(self, segment: Segment) -> MountedCopy | None:
        """None: it is not uploaded from a directory."""
        if self.peers is None:
            return None
        return mounted_copy(segment, self.node_id, self.catalog.mount_of)

    def most_unsent_bytes(self, segment: Segment | None) -> int:
        """Unsent bytes of a mounted segment; else 0."""
        return most_unsent_bytes(segment) if segment is not None and self.of(segment) is not None else 0

    async def read(self, segment: Segment, piece: Piece) -> LogRange:
        """Whole batches from the piece's first offset on, at most `max_bytes` of them, or what the first one needs.
        Raises: DirectoryAway, PeerRefused, Corrupt, NotFound."""
        copy, seal = self.of(segment), segment.seal
        if copy is None or seal is None:
            raise NotFound(f"segment {piece.key} has no copy to upload from, here or mounted: look for its replicas")
        data, headers, offset = bytearray(), list[BatchHeader](), piece.base_offset
        while offset < seal.end_offset and len(data) < piece.max_bytes:
            found = await self._ask(segment, copy, offset, piece.max_bytes - len(data))
            if len(data) + len(found) > piece.max_bytes:  # one batch, which has no room
                if not data:
                    return LogRange(offset, offset, b"", (), needed_bytes=len(found))
                break
            source = f"segment {piece.key} at node {copy.nodes}"
            some = await self.encoder.run(len(found), _headers_of, found, source)
            if some[0].base_offset != offset:
                raise Corrupt(
                    f"the copy has a batch at offset {some[0].base_offset}, expected {offset}",
                    source=source,
                    position=0,
                )
            data += found
            headers += some
            offset = headers[-1].end_offset
        self.stats.mounted_read_bytes += len(data)
        return LogRange(piece.base_offset, offset, memoryview(data), tuple(headers))

    async def _ask(self, segment: Segment, copy: MountedCopy, offset: int, max_bytes: int) -> bytes | memoryview:
        assert self.peers is not None, "`of` says so"
        if copy.away is not None:
            raise DirectoryAway(copy.away)
        near, far = self.peers.holders(segment)
        may_answer = {*near, *far}  # who did not is asked last: each read would wait for it
        nodes = sorted(copy.nodes, key=lambda node: node not in may_answer)
        try:
            return await self.peers.read(segment, nodes, offset, max_bytes)
        except PeerRefused:
            raise
        except Unavailable as error:
            raise DirectoryAway(str(error)) from error


def _headers_of(data: bytes | memoryview, source: str) -> list[BatchHeader]:
    """They were checked when they came."""
    return [header for _, header in walk(data, source=source, verify=False)]
