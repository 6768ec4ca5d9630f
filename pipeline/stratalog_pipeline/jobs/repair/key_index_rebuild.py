"""Builds a segment's key index again of its batches: to check it, to the last byte, or to put it under other parts,
where several runs become one.

For a thread. Memory: a run, and some 100 bytes per record of 8 MiB of them. Raises: Corrupt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from stratalog.formats.batches.batch_headers import BatchHeaders
from stratalog.formats.bucket.key_index import KeyRun
from stratalog.formats.bucket.key_runs import KeyEntries, find_keys
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.part import PART_HEADER_BYTES
from stratalog.formats.segments.digest import object_digest
from stratalog.model.errors import Corrupt

MERGED_RUN_ENTRIES: Final = 1 << 22
"""Most entries of a merged run: 120 MiB. Merging takes some 90 bytes of memory for each entry."""


def runs_to_merge(runs: Iterable[KeyRun], most_entries: int = MERGED_RUN_ENTRIES) -> list[list[KeyRun]]:
    """All runs in order, grouped into merged runs of at most `most_entries`."""
    groups: list[list[KeyRun]] = []
    for run in runs:
        if groups and sum(one.entries for one in groups[-1]) + run.entries <= most_entries:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


class KeyIndexRebuild:
    """Parts are taken in order; then `finish`. A run covers the offsets of those that it takes the place of."""

    def __init__(
        self, seal_digest: bytes, groups: Iterable[Sequence[KeyRun]], on_run: Callable[[KeyRun, bytes, int], None]
    ) -> None:
        """`groups`: of runs that become one; a run by itself keeps its buckets. `on_run`: with the run, its bytes as
        they are now, and how many entries it has. What it says of name, size and digest is the first of the group's."""
        self._digest = seal_digest
        self._left = deque(_one_of(runs) for runs in groups)
        self._entries = KeyEntries()
        self._on_run = on_run

    def add_part(self, number: int, data: bytes, positions: Sequence[int], source: str) -> None:
        """`data`: the batches of the part of that number, which were checked; `positions`: where each begins, and where
        the last one ends."""
        headers = BatchHeaders(data, positions)
        bases, at = headers.longs("base_offset"), 0
        while at < len(headers) and self._left:
            end = int(np.searchsorted(bases, self._left[0].to_offset))
            for group, keys in find_keys(data, headers.only(np.arange(at, end)), source=source):
                sizes = group.ends - group.positions
                self._entries.add(keys, number, group.positions + PART_HEADER_BYTES, sizes)
            at = end
            if at < len(headers):
                self._finish_run()

    def finish(self) -> None:
        while self._left:
            self._finish_run()

    def _finish_run(self) -> None:
        run, count = self._left.popleft(), self._entries.count
        pages, buckets = self._entries.take_run(self._digest, run.buckets)
        self._on_run(replace(run, buckets=buckets), b"".join(pages), count)


def _one_of(runs: Sequence[KeyRun]) -> KeyRun:
    """No buckets: as many as its entries need."""
    if len(runs) == 1:
        return runs[0]
    entries = sum(run.entries for run in runs)
    return replace(runs[0], buckets=0, entries=entries, to_offset=runs[-1].to_offset)


def key_index_check(manifest: Manifest) -> KeyIndexRebuild:
    """Raises Corrupt where a run is not the one that the manifest names."""
    return KeyIndexRebuild(manifest.seal.digest, [[run] for run in manifest.key_runs], _check_run)


def _check_run(run: KeyRun, body: bytes, _: int) -> None:
    if object_digest(body) != run.digest:
        raise Corrupt("it is not the key index of the segment's batches", source=run.object_key, position=0)
