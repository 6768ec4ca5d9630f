"""Reads cold segments with little memory, in ranges smaller than a merged part."""

from __future__ import annotations

from stratalog.formats.batches.record_batch import walk
from stratalog.model.segment import Segment
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader

SMALL = ColdReadLimits(
    cache_bytes=4 << 20, window_min_bytes=64 << 10, window_max_bytes=1 << 20, block_bytes=64 << 10, bytes_per_s=None
)


async def read_all(reader: ColdReader, segments: list[Segment], from_offset: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    while from_offset < end:
        for piece in await reader.read(segments, from_offset, 20_000):
            for at, header in walk(piece, source="answer"):
                found.append(bytes(piece[at : at + header.size_bytes]))
                from_offset = header.end_offset
    return found
