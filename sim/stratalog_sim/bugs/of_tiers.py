"""Bugs of uploads, retention and sweeps, and of the meta service's store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stratalog.machines.table import remote as table_remote
from stratalog.machines.table import segments as table_segments
from stratalog.machines.tiering import orphans, retention
from stratalog.model.segment import RemoteState, Segment
from stratalog_meta.stores.memory import MemoryStore
from stratalog_node.shards.copies.active import ActiveSegment
from stratalog_node.shards.read import ranges
from stratalog_node.tier.sweep import orphan_sweep
from stratalog_node.tier.sweep import retention as node_retention
from stratalog_node.tier.uploads import key_indexer, publisher, puts, sender
from stratalog_node.tier.uploads.source import PieceData, PieceReader
from stratalog_node.tier.uploads.uploader import NodeUploader
from stratalog_sim.planting import Patch


def upload_above_high_watermark() -> list[Patch]:
    """All that is in the file is uploaded."""

    def readable_end(copy: Any) -> tuple[int, int]:
        if isinstance(copy, ActiveSegment):
            return copy.size_bytes, copy.leader.end_offset
        return ended(copy)

    async def read_all(self: PieceReader, piece: Any, segment: Any) -> Any:
        view = self._local_view(piece.key)
        if piece.replaces or view is None:
            return await read(self, piece, segment)
        found = await self._read_locally(view, piece.key, piece.base_offset, piece.max_bytes, at_least_one=True)
        digest = await self._digest_at(piece.key, piece.base_offset, segment.remote.parts)
        return PieceData(
            piece, found.base_offset, found.end_offset, found.data, found.headers, digest, False, found.times
        )

    ended, read = ranges.readable_end, PieceReader.read
    return [(ranges, "readable_end", readable_end), (PieceReader, "read", read_all)]


def delete_before_commit() -> list[Patch]:
    """A sealed copy counts as stored once its upload has begun."""

    def to_free(segments: Any, has_local: Any, active_bytes: int, limits: Any, now_ms: int) -> Any:
        begun = [
            replace(one, remote=replace(one.remote, state=RemoteState.COMPLETE))
            if one.seal is not None and one.remote.state is not RemoteState.NONE
            else one
            for one in segments
        ]
        return retention.local_copies_to_free(begun, has_local, active_bytes, limits, now_ms)

    def forget_local(tx: Any, command: Any) -> Iterator[None]:
        for key in command.segments:
            segment = tx.state.segment(key)
            others = tuple(one for one in segment.local_nodes if one != command.node_id)
            tx.replace_segment(segment, replace(segment, local_nodes=others))
        yield

    async def is_readable(self: Any, segment: Segment) -> bool:
        return True

    return [
        (node_retention, "local_copies_to_free", to_free),
        (table_segments, "forget_local", forget_local),
        (node_retention.RetentionWorker, "_is_readable_cold", is_readable),
    ]


def any_holder_uploads() -> list[Patch]:
    """Any node that holds a copy of a segment may commit what it uploaded."""

    def check_uploader(tx: Any, segment: Any, caller: Any) -> None:
        return None

    def _is_ours(self: NodeUploader, segment: Segment) -> bool:
        return self._node_id in (*segment.replicas, *segment.local_nodes)

    return [(table_remote, "_check_uploader", check_uploader), (NodeUploader, "_is_ours", _is_ours)]


def uncommitted_upload_is_swept() -> list[Patch]:
    """An object that the metadata do not name counts as an orphan, even if a node is about to commit it."""

    def classify(objects: Any, facts: Any, *_: Any) -> Any:
        verdicts = orphans.Verdict
        return [verdicts.WAIT if one.key in facts.referenced else verdicts.ORPHAN for one in objects]

    return [(orphan_sweep, "classify_folder", classify)]


def commit_of_a_refused_put() -> list[Patch]:
    """A put that was refused counts as one that succeeded."""
    put = puts.put

    async def put_or_not(*args: Any) -> int:
        try:
            return await put(*args)
        except puts.PutRefused:
            return 0

    return [(one, "put", put_or_not) for one in (publisher, key_indexer, sender)]


def metadata_acknowledged_before_they_are_kept() -> list[Patch]:
    """The meta service answers, and forgets some of what it wrote last when it dies."""
    write = MemoryStore.write

    async def write_later(self: Any, commands: Any) -> None:
        late = self.__dict__.get("late", [])
        await write(self, [*late, *commands[:-1]])
        self.__dict__["late"] = list(commands[-1:])

    load = MemoryStore.load

    async def load_some(self: Any) -> Any:
        self.__dict__["late"] = []
        return await load(self)

    return [(MemoryStore, "write", write_later), (MemoryStore, "load", load_some)]
