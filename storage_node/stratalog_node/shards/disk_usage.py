"""How full the disk under this node's segments is, and what of that they take."""

from __future__ import annotations

import os
from pathlib import Path

from stratalog_node.shards.directory import ShardDirectory
from stratalog_node.shards.shard_lookup import DiskUsage


class LocalDisk:
    def __init__(self, root: Path, directory: ShardDirectory) -> None:
        self.root = root
        self._directory = directory

    def usage(self) -> DiskUsage:
        usage = os.statvfs(self.root)
        return DiskUsage(str(self.root), usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize)

    def local_bytes(self) -> int:
        """Bytes of all local copies. Cost: a look at each."""
        return sum(shard.local_size_bytes() for shard in self._directory.all())
