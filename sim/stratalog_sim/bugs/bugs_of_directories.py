"""Deliberate bugs in what a directory proves: damage, older states and copies count as that of the last life."""

from __future__ import annotations

from typing import Any

from stratalog.machines.table import nodes as table_nodes
from stratalog_sim.environment.disk import Disk, DiskFile
from stratalog_sim.node.replica import ReplicaShell
from stratalog_sim.planting import Patch
from stratalog_sim.service import meta


def damage_taken_for_a_torn_tail() -> list[Patch]:
    """What lies behind a bad batch is cut, and what is left counts as whole."""

    def seen_offset(self: DiskFile, key: Any) -> Any:
        return key.base_offset

    def begin(self: ReplicaShell, node_of: Any, key: Any, *, is_fsync: bool, is_tail_whole: bool) -> None:
        file = node_of.disk.files.get(key)
        if file is not None and len(file.whole(key)) < len(file.cells):
            node_of.disk.truncate(key, len(file.whole(key)))
        was(self, node_of, key, is_fsync=is_fsync, is_tail_whole=is_tail_whole)

    was = ReplicaShell.__init__
    return [(DiskFile, "seen_offset", seen_offset), (ReplicaShell, "__init__", begin)]


def shorter_file_taken_for_whole() -> list[Patch]:
    """What the last life wrote is not compared with what its file has."""

    def written_offset(self: Disk, key: Any) -> int:
        return -1

    return [(Disk, "written_offset", written_offset)]


def older_state_passes_for_the_last_one() -> list[Patch]:
    """The same storage id and the same boot: what is there counts as all that was."""

    def continues(known: Any, command: Any) -> Any:
        return known.info.storage_id == command.node.storage_id

    return [(table_nodes, "continues", continues)]


def copy_drives_out_the_living() -> list[Patch]:
    """A process that registers with the storage id of a living node is accepted at once."""

    def is_process_over(known: Any, command: Any) -> bool:
        return known is None or known.info.storage_id == command.node.storage_id

    return [(meta, "is_process_over", is_process_over)]
