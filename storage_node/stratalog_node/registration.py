"""Begins a life of this node: shows the meta service what its directory proves, and returns what the service says of
it.

A life does nothing before the directory names the start that began it (`disk/life_record.py`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from stratalog.machines.copies.disk_room import scarcity_of
from stratalog.meta_api.client import CommandTaker
from stratalog.model.commands.table_commands import RegisterNode
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Life, NodeInfo
from stratalog.settings.choices import FlushPolicy
from stratalog.telemetry.logs import logger
from stratalog_node.disk.clean_stop import stopped_epoch
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.disk.life_record import Origin, note_life, note_start, seat_of
from stratalog_node.heartbeats import register
from stratalog_node.shards.log.disk_usage import usage_of

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class BegunLife:
    life: Life
    origin: Origin
    """What the directory proves."""
    note_examined: Callable[[Iterable[ShardKey]], None]
    """Blocking: all files that boots before this one left were examined, those of these shards excepted. Raises:
    DiskFull, Unavailable."""


async def begin_life(
    meta: CommandTaker, info: NodeInfo, layout: NodeLayout, lock: int, *, boot_id: str, flush_policy: FlushPolicy
) -> BegunLife:
    """`lock`: the descriptor that holds the directory's lock. `boot_id`: of the machine's present boot.

    Raises: Conflict when another life of the node is running; Unavailable, DiskFull, Fenced, InvalidRequest.
    """
    disk = await asyncio.to_thread(usage_of, layout.root)
    start_id = secrets.token_hex(8)
    past = await asyncio.to_thread(note_start, layout.life_file, start_id, boot_id)
    registration = await register(
        meta,
        RegisterNode(
            info,
            start_id=start_id,
            boot_id=boot_id,
            stopped_epoch=stopped_epoch(layout.clean_file),
            is_flushed_by_default=flush_policy is FlushPolicy.FSYNC,
            earlier_starts=past.starts,
            seat=seat_of(lock, boot_id),
            scarcity=scarcity_of(disk.usable_bytes, disk.total_bytes, 0),
        ),
    )
    is_same_boot = past.boot_id != "" and past.boot_id == boot_id
    known = (boot_id, past.unexamined) if is_same_boot else ("",)
    await asyncio.to_thread(note_life, layout.life_file, start_id, *known)
    is_continued = registration.is_continued
    if not is_continued:
        log.error(
            "this directory is a copy of the one in which the node's last life ran, or an older state of it: other "
            "nodes decide about what it lacks, and it copies that from them",
            data=str(layout.root),
            life=registration.node_epoch,
        )
    is_memory_kept, is_examined = is_continued and is_same_boot, past.boot_id != ""
    origin = Origin(is_continued, is_memory_kept, is_examined=is_examined, unexamined=past.unexamined)
    life = Life(info.node_id, registration.node_epoch)
    return BegunLife(life, origin, partial(note_life, layout.life_file, start_id, boot_id))
