"""Messages about the segments that hold up a retirement: where their data are, and what helps.

Pure. Source: docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.machines.copies.leaving_survey import Survey
from stratalog.model.counting import counted
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node


def away_message(survey: Survey, node_id: int) -> str:
    """About segments that a node has which is away."""
    words = (
        f"on no node that is alive: {counted(survey.away.count, 'sealed segment')} ({size_of(survey.away.bytes)}), "
        f"such as {named(survey.away.first)}; node {node_id} is to have a copy and has none"
    )
    if survey.away_nodes:
        words += f"; start nodes {sorted(survey.away_nodes)}"
    if survey.away_directories:
        words += (
            f"; where the directories of nodes {sorted(survey.away_directories)} are, run `stratalog node start "
            "--read-only --data DIR --meta URL`; if their disks are gone, `stratalog mounts end tier/N --force "
            "STORAGE-ID`"
        )
    return words


def gone_message(survey: Survey, node_id: int) -> str:
    """Of those that were given up with other nodes."""
    return (
        f"no node has {counted(survey.gone.count, 'sealed segment')} ({size_of(survey.gone.bytes)}), such as "
        f"{named(survey.gone.first)}, and node {node_id} is listed for them; they were given up by force with "
        f"nodes {sorted(survey.gone_nodes)}: once DeleteRecords or retention has moved the start of the log behind "
        "them, the retirement continues"
    )


def kept_message(survey: Survey, node: Node) -> str:
    """About segments that directories have. No node copies from a directory: only the object store can get them."""
    words = (
        f"only the directories of retired nodes {sorted(survey.directories)} have "
        f"{counted(survey.kept.count, 'sealed segment')} ({size_of(survey.kept.bytes)}), such as "
        f"{named(survey.kept.first)}"
    )
    if survey.unread:
        words += (
            f"; no process reads those of nodes {sorted(survey.unread)}: where they are, run `stratalog node start "
            "--read-only --data DIR --meta URL`"
        )
    if survey.kept_untiered < survey.kept.count:
        words += "; the holders of their mounts upload them"
    if survey.kept_untiered:
        words += (
            f"; no node copies from a directory: set remote.storage.enable=true for the topics of "
            f"{survey.kept_untiered:,} of them, and the holders of their mounts upload them, too"
        )
    if survey.kept_here:
        words += f"; or start node {node.node_id}, which has {survey.kept_here:,} of them and is not alive"
    if not node.is_alive:
        words += (
            f"; if its disk is gone, `stratalog nodes retire {node.node_id} --force {node.storage_id}` lets it go, and "
            "gives up nothing of them"
        )
    return words


def named(keys: Sequence[SegmentKey]) -> str:
    return ", ".join(f"{key.base_offset}-{key.epoch} of shard {key.shard} of topic {key.topic_id}" for key in keys[:3])


def size_of(size_bytes: int) -> str:
    """For people: bytes in the largest unit that yields at least 1."""
    amount, units = float(size_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return counted(size_bytes, "byte") if units[0] == "bytes" else f"{amount:.1f} {units[0]}"
