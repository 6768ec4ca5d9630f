"""How full the disk under this node's segments is, and what of that they take."""

from __future__ import annotations

import os
from pathlib import Path

from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.shards.shard_lookup import DiskUsage


def usage_of(root: Path) -> DiskUsage:
    """What is used and what this process may still use, as df counts it: blocks kept for the superuser are neither.
    Counted in, a disk with many of them would seem full for ever to every rule that asks for a share of it.
    Raises: OSError."""
    usage = os.statvfs(root)
    kept_back = usage.f_bfree - usage.f_bavail
    return DiskUsage(str(root), (usage.f_blocks - kept_back) * usage.f_frsize, usage.f_bavail * usage.f_frsize)


class LocalDisk:
    def __init__(self, root: Path, directory: ShardDirectory) -> None:
        self.root = root
        self._directory = directory

    def usage(self) -> DiskUsage:
        return usage_of(self.root)

    def local_bytes(self) -> int:
        """Bytes of all local copies. Cost: a look at each."""
        return sum(shard.local_size_bytes() for shard in self._directory.all())
