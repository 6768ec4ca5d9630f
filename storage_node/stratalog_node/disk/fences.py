"""`fences.json`: the fences that this node promised, and the copies that it found damaged. A promise is recorded here
before it is reported, and outlives every crash: no process in this directory accepts data of that segment from a leader
below the fence. For a damaged copy the file records up to where batches were seen, before any of them is overwritten:
so a later process does not mistake the rest for the whole.

Blocking: for disk threads, which take turns.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.durable_files import read_file, write_durably

_Offsets = dict[SegmentKey, int]


class FenceBook:
    """Memory and cost of a write: one line for each fenced segment that is not sealed yet, and each damaged copy."""

    def __init__(self, path: Path) -> None:
        """Raises: Corrupt, if it is unknown what was promised; Unavailable."""
        self._path = path
        self._fences, self._seen = _read(path)
        self._changing = threading.Lock()

    @property
    def keys(self) -> set[SegmentKey]:
        """The segments of which it says something."""
        return self._fences.keys() | self._seen.keys()

    def promised(self, key: SegmentKey) -> int:
        """0: none."""
        return self._fences.get(key, 0)

    def seen_offset(self, key: SegmentKey) -> int:
        """Below it the copy held batches when it was found damaged; -1: it was not."""
        return self._seen.get(key, -1)

    def promise(self, fences: Mapping[SegmentKey, int]) -> None:
        """Durability: they are on the disk when this returns. Raises: DiskFull, Unavailable; the outcome is then
        unknown."""
        with self._changing:
            raised = {key: max(fence, self.promised(key)) for key, fence in fences.items()}
            self._write({**self._fences, **raised}, self._seen)

    def note_damage(self, key: SegmentKey, seen_offset: int) -> None:
        """Durability: as `promise`. Raises: DiskFull, Unavailable."""
        with self._changing:
            if seen_offset > self.seen_offset(key):
                self._write(self._fences, {**self._seen, key: seen_offset})

    def forget_damage(self, key: SegmentKey) -> None:
        """A recovery decided without what was there. Raises: DiskFull, Unavailable."""
        with self._changing:
            if key in self._seen:
                self._write(self._fences, _without([key], self._seen))

    def forget(self, keys: Iterable[SegmentKey]) -> None:
        """Their ends are known, and they lie here whole, or are gone. Raises: DiskFull, Unavailable."""
        with self._changing:
            gone = {key for key in keys if key in self._fences or key in self._seen}
            if gone:
                self._write(_without(gone, self._fences), _without(gone, self._seen))

    def _write(self, fences: _Offsets, seen: _Offsets) -> None:
        lines = {"fences": _lines_of(fences), "damaged": _lines_of(seen)}
        write_durably(self._path, [json.dumps(lines).encode() + b"\n"])
        self._fences, self._seen = fences, seen


def _without(gone: Collection[SegmentKey], offsets: _Offsets) -> _Offsets:
    return {key: at for key, at in offsets.items() if key not in gone}


def _lines_of(offsets: _Offsets) -> list[list[Any]]:
    return [[str(k.topic_id), k.shard, k.epoch, k.base_offset, at] for k, at in offsets.items()]


def _read(path: Path) -> tuple[_Offsets, _Offsets]:
    data = read_file(path)
    if data is None:
        return {}, {}
    try:
        found = json.loads(data)
        return _offsets_of(found["fences"]), _offsets_of(found.get("damaged", []))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"no list of fences: {error}; without it the node does not know which leaders it must not follow: "
            f"start it on "
            "an empty --data DIR, and it copies what it needs",
            source=str(path),
            position=0,
        ) from error


def _offsets_of(lines: Iterable[Any]) -> _Offsets:
    return {
        SegmentKey(UUID(topic_id), int(shard), int(epoch), int(base_offset)): int(at)
        for topic_id, shard, epoch, base_offset, at in lines
    }
