"""Deliberate bugs in what a directory proves: damage, older states and copies count as that of the last life."""

from __future__ import annotations

from typing import Any

from stratalog.formats.disk.tail_damage import Tail, TailKind
from stratalog.machines.table import nodes as table_nodes
from stratalog_meta import lives
from stratalog_node.disk.ends_in_memory import EndsInMemory
from stratalog_node.replication import replica_copy
from stratalog_node.shards.restart import opening
from stratalog_sim.planting import Patch


def damage_taken_for_a_torn_tail() -> list[Patch]:
    """What lies behind a bad batch is cut, and what is left counts as whole."""

    def judge_tail(read: Any, position: int, size_bytes: int, next_offset: int, epoch: int) -> Tail:
        return Tail(TailKind.TORN, next_offset)

    return [(replica_copy, "judge_tail", judge_tail), (opening, "judge_tail", judge_tail)]


def shorter_file_taken_for_whole() -> list[Patch]:
    """What the last life wrote is not compared with what its file has."""
    return [(EndsInMemory, "found", property(lambda _: {}))]


def older_state_accepted() -> list[Patch]:
    """The same storage id: what is there counts as all that was."""

    def continues(known: Any, command: Any) -> bool:
        return bool(known.info.storage_id == command.node.storage_id)

    return [(table_nodes, "continues", continues)]


def copy_replaces_a_living_node() -> list[Patch]:
    """A process that registers with the storage id of a living node is accepted at once."""

    def is_process_over(known: Any, command: Any) -> bool:
        return known is None or known.info.storage_id == command.node.storage_id

    return [(lives, "is_process_over", is_process_over)]
