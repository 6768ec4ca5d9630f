"""A node with one thing taken out, so that a cell shows what that thing costs or brings.

node_without.py journal start ...   topics that wait for flushes: each file is flushed by itself (decision 0004)
node_without.py disk start ...      batches are checked, counted and acknowledged, and written nowhere: the most
                                    that this load generator gets out of such a server here
node_without.py flush start ...     objects in a directory are not flushed, as those of Kafka's LocalTieredStorage are
                                    not: what is in the object store may be gone after a power cut
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from stratalog.objects import directory_files
from stratalog_cli.entry import main
from stratalog_node.disk.files import SegmentFile
from stratalog_node.shards.flush import flusher


def without_journal() -> None:
    flusher.DIRECT_FILES = sys.maxsize


def without_disk() -> None:
    def count(file: SegmentFile, buffers: Sequence[memoryview | bytes], size_bytes: int) -> None:
        file.size_bytes += size_bytes

    SegmentFile.append = count  # type: ignore[method-assign]


def without_flush() -> None:
    names = vars(os) | {"fsync": lambda _: None}
    directory_files.os = SimpleNamespace(**names)  # type: ignore[attr-defined]


if __name__ == "__main__":
    {"journal": without_journal, "disk": without_disk, "flush": without_flush}[sys.argv.pop(1)]()
    main()
