"""What the pages ask of the node beside its admin API: groups with their lag, who is connected, a look at records.

Lives on the event loop; records are opened on a thread, for a batch may be large and compressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.formats.record_batch import walk
from stratalog.formats.records import Record, decode_records
from stratalog_node.groups.hosted import HostedGroup
from stratalog_node.measures.groups import ShardLag
from stratalog_node.measures.history import Sample
from stratalog_node.serve.server import ClientView
from stratalog_node.shards.shard_view import ShardView

RECORDS_SHOWN: Final = 20
_READ_BYTES: Final = 256 << 10
_MOST_DECODED_BYTES: Final = 8 << 20
"""Of one batch that is opened for a look."""


@dataclass(frozen=True, slots=True)
class NodeViews:
    """Handed in by the composition."""

    samples: Callable[[], Sequence[Sample]]
    groups: Callable[[], Iterator[HostedGroup]]
    lags: Callable[[], Sequence[ShardLag]]
    clients: Callable[[], Sequence[ClientView]]


async def look_at_records(shard: ShardView, offset: int) -> list[Record]:
    """The first ones from an offset on. Raises: what reading raises; Corrupt."""
    pieces = await shard.read(max(offset, shard.log_start_offset), _READ_BYTES)
    data = b"".join(pieces)
    return await asyncio.to_thread(_opened, data, offset)


def _opened(data: bytes, offset: int) -> list[Record]:
    found: list[Record] = []
    for position, header in walk(data, source="data read for views"):
        if header.end_offset > offset and header.record_count and not header.is_control:
            records = decode_records(data[position : position + header.size_bytes], max_bytes=_MOST_DECODED_BYTES)
            found += [one for one in records if one.offset >= offset]
        if len(found) >= RECORDS_SHOWN:
            break
    return found[:RECORDS_SHOWN]
