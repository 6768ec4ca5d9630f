"""Snapshots as lines of JSON: a long answer that neither side holds as one text (watches: `watch_lines`).

A snapshot is a first line that counts what follows, then one record a line; a reader that does not get them all knows.

Cost: a line costs what its record costs (see `codec`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from stratalog.meta_api.codec import Count, Json, NodeJson, ShardJson, TopicJson
from stratalog.model.errors import Unavailable
from stratalog.model.metadata import NodeInfo, Snapshot
from stratalog.model.topic import Shard, Topic

RECORDS_PER_PIECE = 256


class SnapshotHead(Json):
    """The first line of a snapshot: its version, and how many lines of each kind follow."""

    version: Count
    nodes: Count
    topics: Count
    shards: Count


def snapshot_pieces(snapshot: Snapshot) -> Iterator[bytes]:
    """The lines of a snapshot, some at a time: between two pieces the caller may let others run."""
    head = SnapshotHead(
        version=snapshot.version, nodes=len(snapshot.nodes), topics=len(snapshot.topics), shards=len(snapshot.shards)
    )
    lines = [head.model_dump_json().encode()]
    for model, records in (
        (NodeJson, snapshot.nodes),
        (TopicJson, snapshot.topics),
        (ShardJson, snapshot.shards),
    ):
        for record in records:
            lines.append(model.model_validate(record).model_dump_json().encode())
            if len(lines) >= RECORDS_PER_PIECE:
                yield b"\n".join(lines) + b"\n"
                lines = []
    if lines:
        yield b"\n".join(lines) + b"\n"


class SnapshotReader:
    """Puts a snapshot together, line by line."""

    def __init__(self) -> None:
        self._head: SnapshotHead | None = None
        self._nodes: list[NodeInfo] = []
        self._topics: list[Topic] = []
        self._shards: list[Shard] = []

    def add(self, line: bytes) -> None:
        """Raises Unavailable for what is no line of a snapshot."""
        try:
            if self._head is None:
                self._head = SnapshotHead.model_validate_json(line)
            elif len(self._nodes) < self._head.nodes:
                self._nodes.append(NodeJson.model_validate_json(line).to_record())
            elif len(self._topics) < self._head.topics:
                self._topics.append(TopicJson.model_validate_json(line).to_record())
            else:
                self._shards.append(ShardJson.model_validate_json(line).to_record())
        except ValidationError as error:
            raise Unavailable(
                f"a line of the snapshot cannot be read ({error.errors()[0]['msg']}): ask again"
            ) from error

    def finish(self) -> Snapshot:
        """Raises Unavailable when lines are missing."""
        head = self._head
        if head is None or len(self._shards) != head.shards:
            raise Unavailable("the snapshot of the metadata was cut short: ask again")
        return Snapshot(head.version, tuple(self._topics), tuple(self._shards), tuple(self._nodes))
