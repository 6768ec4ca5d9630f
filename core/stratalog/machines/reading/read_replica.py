"""Which replica serves a consumer that names its rack (KIP-392): one that proved what it is to read, its rack's first.

Pure. A consumer is sent away for sealed data alone, and only where enough of it follows without a gap: what is active
its leader serves, and a consumer that is about to arrive there gains nothing by a detour.
Source: docs/kafka.md "Reading from another replica".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from stratalog.model.segment import Segment, SegmentState

_MOST_SEGMENTS = 64
"""So many are looked at, however small they are."""


def has_run(segments: Sequence[Segment], first: int, offset: int, node_id: int, least_bytes: int) -> bool:
    """Whether a node proved at least this many bytes from an offset of `segments[first]` on, without a gap. For the
    first segment the bytes are estimated from offsets."""
    found = 0
    for segment in segments[first : first + _MOST_SEGMENTS]:
        seal = segment.seal
        if segment.state is not SegmentState.SEALED or seal is None or node_id not in segment.local_nodes:
            return False
        count = seal.end_offset - seal.base_offset
        left = seal.end_offset - max(offset, seal.base_offset)
        found += seal.size_bytes * left // count if count else 0
        if found >= least_bytes and found:
            return True
    return False


def reader_of(
    segments: Sequence[Segment],
    first: int,
    offset: int,
    *,
    named: Collection[int],
    racks: Mapping[int, str | None],
    rack: str,
    least_bytes: int,
    consumer: str,
) -> int | None:
    """The node that should serve this consumer from `offset`, which lies in `segments[first]`; None: no node may.
    `named`: the replicas in Metadata answers, because clients ignore any other. `racks`: of the living nodes. The same
    consumer gets the same node as long as the same ones may serve it.
    """
    able = [node for node in named if node in racks and has_run(segments, first, offset, node, least_bytes)]
    near = [node for node in able if (racks[node] or "") == rack]
    return _spread(near or able, consumer)


def _spread(nodes: Iterable[int], consumer: str) -> int | None:
    """By rendezvous: one node more or less moves only the consumers that it takes or leaves."""
    return max(nodes, key=lambda node: blake2b(f"{consumer}@{node}".encode(), digest_size=8).digest(), default=None)
