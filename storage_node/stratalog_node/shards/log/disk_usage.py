"""How full the disk under this node's segments is, and how much of that they use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stratalog_node.disk.layout import FurtherDirectory
from stratalog_node.shards.flush.shard_lookup import DiskUsage, FurtherUsage
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.slices import Slices


def usage_of(root: Path) -> DiskUsage:
    """What is used and what this process may still use, as df counts it: blocks kept for the superuser are neither.
    Counted in, a disk with many of them would seem full for ever to every rule that asks for a share of it.
    Raises: OSError."""
    usage = os.statvfs(root)
    kept_back = usage.f_bfree - usage.f_bavail
    return DiskUsage(str(root), (usage.f_blocks - kept_back) * usage.f_frsize, usage.f_bavail * usage.f_frsize)


class LocalDisk:
    def __init__(self, root: Path, directory: ShardDirectory, further: Sequence[FurtherDirectory] = ()) -> None:
        self.root = root
        self._directory = directory
        self._further = further

    def usage(self) -> DiskUsage:
        return usage_of(self.root)

    def further(self) -> list[FurtherUsage]:
        """Blocking. The data directories besides the first."""
        found = []
        for one in self._further:
            usage = DiskUsage(str(one.root), -1, -1)
            if one.trouble is None:
                with suppress(OSError):
                    usage = usage_of(one.root)
            found.append(FurtherUsage(usage, usage.total_bytes >= 0))
        return found

    async def local_bytes(self) -> int:
        """Bytes of all local copies. Works in slices, because one pass over 20,000 shards of many segments takes more
        than a second."""
        total, slices = 0, Slices()
        for shard in list(self._directory.all()):
            total += shard.local_size_bytes()
            await slices.did(1 + len(shard.copies) // 4)
        return total
