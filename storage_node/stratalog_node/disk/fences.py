"""`fences.json`: the fences that this node promised. A promise is told to nobody before it is here, and outlives every
crash: no life of this directory takes data of that segment from a leader that the fence is above.

Blocking: for disk threads, which take turns.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.durable_files import read_file, write_durably


class FenceBook:
    """Memory and cost of a write: one line for each fenced segment that is not sealed yet."""

    def __init__(self, path: Path) -> None:
        """Raises: Corrupt, when nobody can say what was promised; Unavailable."""
        self._path = path
        self._fences = _read(path)
        self._changing = threading.Lock()

    def promised(self, key: SegmentKey) -> int:
        """0: none."""
        return self._fences.get(key, 0)

    def promise(self, fences: Mapping[SegmentKey, int]) -> None:
        """Durability: they are on the disk when this returns. Raises: DiskFull, Unavailable; then nobody knows."""
        with self._changing:
            raised = {key: max(fence, self.promised(key)) for key, fence in fences.items()}
            self._write({**self._fences, **raised})

    def forget(self, keys: Iterable[SegmentKey]) -> None:
        """Their ends are known, and they lie here whole, or are gone. Raises: DiskFull, Unavailable."""
        with self._changing:
            gone = {key for key in keys if key in self._fences}
            if gone:
                self._write({known: fence for known, fence in self._fences.items() if known not in gone})

    def _write(self, fences: dict[SegmentKey, int]) -> None:
        lines = [[str(k.topic_id), k.shard, k.epoch, k.base_offset, fence] for k, fence in fences.items()]
        write_durably(self._path, [json.dumps({"fences": lines}).encode() + b"\n"])
        self._fences = fences


def _read(path: Path) -> dict[SegmentKey, int]:
    data = read_file(path)
    if data is None:
        return {}
    try:
        lines = json.loads(data)["fences"]
        return {
            SegmentKey(UUID(topic_id), int(shard), int(epoch), int(base_offset)): int(fence)
            for topic_id, shard, epoch, base_offset, fence in lines
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"no list of fences: {error}; without it the node does not know which leaders it must not follow: "
            f"start it on "
            "an empty --data DIR, and it copies what it needs",
            source=str(path),
            position=0,
        ) from error
