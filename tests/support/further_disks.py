"""A node's further data directories, for tests."""

from __future__ import annotations

from pathlib import Path

from stratalog.model.data_directories import DirectorySpec
from stratalog_node.disk.further_directories import NodeMark, OpenedDirectory, open_directories
from stratalog_node.disk.layout import NodeLayout

MARK = NodeMark(1, "disk-1", "ours")


def open_further(layout: NodeLayout, *roots: Path, mark: NodeMark = MARK) -> list[OpenedDirectory]:
    """As a start does. The directories are made if they are not there."""
    return open_directories(layout, [DirectorySpec("hdd", str(root)) for root in roots], mark)
