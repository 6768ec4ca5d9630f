"""Decides which neighbouring parts of a complete segment become one object. Pure.

The merging job is not a node: it writes under a number that no node can have, and under the write lock of that number,
so that the rules for an uploader's leftovers apply to it unchanged.
Invariant: what was merged once is not merged again with the same target. A part's batches are counted by what is left
of its size without header and empty index; merging never makes that less, so two neighbours that did not fit together
never will.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stratalog.model.mounts import data_set_name
from stratalog.model.segment import RemotePart

COMPACTION_WRITER: Final = 1 << 31
"""In names of objects, where a node's number stands: those end below it."""
COMPACTION_LOCK: Final = data_set_name(COMPACTION_WRITER)


def last_to_stay(node_id: int, lock_epoch: int, attempt: int) -> tuple[bool, int, int]:
    """Orders manifests of a segment by their names, for readers without metadata: all name the same batches, and the
    last one stays longest. A merged object outlives the objects that it was merged from, under any write lock."""
    return node_id == COMPACTION_WRITER, lock_epoch, attempt


def merge_groups(parts: Sequence[RemotePart], target_bytes: int, overhead_bytes: int) -> list[tuple[RemotePart, ...]]:
    """All parts in order, those that become one part together. One that is alone stays where it is.

    `overhead_bytes`: of a part without a batch. A merged part has at most `target_bytes` and its index on top."""
    groups: list[list[RemotePart]] = []
    held = 0
    for part in parts:
        size = max(0, part.size_bytes - overhead_bytes)
        if groups and held + size <= target_bytes:
            groups[-1].append(part)
            held += size
        else:
            groups.append([part])
            held = size
    return [tuple(group) for group in groups]
