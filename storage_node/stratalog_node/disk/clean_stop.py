"""`clean.json`: the last process in this directory stopped cleanly, with everything it ever appended on the disk.

It names the life of that process. The next start removes the file, and trusts it only if its own life follows directly:
a copy of an older directory, or a directory that another process used in between, is not clean. A shard that was in
doubt when that life began, and was not written to since, is still in doubt, and named with its epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from stratalog.model.ids import ShardKey
from stratalog_node.disk.durable_files import read_file, sync_directory, write_durably


def note_clean_stop(path: Path, node_epoch: int, doubted: Mapping[ShardKey, int]) -> None:
    """Blocking. Requires: nothing is written any more. Raises: DiskFull, Unavailable."""
    topics: dict[str, list[tuple[int, int]]] = {}
    for key, epoch in doubted.items():
        topics.setdefault(str(key.topic_id), []).append((key.shard, epoch))
    write_durably(path, [json.dumps({"node_epoch": node_epoch, "doubted": topics}).encode() + b"\n"])


def stopped_epoch(path: Path) -> int:
    """The epoch of the life that stopped cleanly here; 0 for none. Blocking; changes nothing. Raises: Unavailable."""
    data = read_file(path)
    try:
        return 0 if data is None else int(json.loads(data)["node_epoch"])
    except (ValueError, KeyError, TypeError):
        return 0


def take_clean_stop(path: Path, node_epoch: int) -> dict[ShardKey, int] | None:
    """What is in doubt though the life before `node_epoch` stopped in order; None when it did not, and all is.

    Blocking; before anything is written. Raises: Unavailable.
    """
    data = read_file(path)
    if data is None:
        return None
    path.unlink()
    sync_directory(path.parent)
    try:
        fields = json.loads(data)
        if int(fields["node_epoch"]) != node_epoch - 1:
            return None
        topics = fields["doubted"].items()
        return {ShardKey(UUID(topic), int(shard)): int(epoch) for topic, shards in topics for shard, epoch in shards}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
