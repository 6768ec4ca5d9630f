"""Which chunks are packed on their way to the object store (docs/formats.md section 17, decision 0039). Pure."""

from __future__ import annotations

from typing import Final

LEAST_PACKED_BYTES: Final = 64 << 10
"""A smaller part is read in one request. Packed it would take three."""
MOST_WAITING: Final = 2
"""So many chunks wait for the one that is being packed. Data must reach the object store before it is made small."""


def is_to_pack(size_bytes: int, *, is_asked_for: bool, has_waiting_producers: bool) -> bool:
    """Whether a chunk of this size is a case for the packer. Packing takes longer than a put, so no chunk is packed
    whose producers wait for it (new data of a Direct segment)."""
    return is_asked_for and not has_waiting_producers and size_bytes >= LEAST_PACKED_BYTES


def is_mostly_compressed(plain_bytes: int, batch_bytes: int) -> bool:
    """Whether clients have compressed most of these batches. Packing gains little on them and costs as much.
    `plain_bytes`: of the batches that are not compressed."""
    return 2 * plain_bytes < batch_bytes
