"""What a sink writes to: where it is, what it remembers, and what it promises.

A target keeps, beside the records, whose topic they are, the offset where each shard is read next, and the offsets that
it lacks. `Target.store` stores a range and moves the shard's offset so that a kill, a lost answer or a second job
leaves each record in the target exactly once; how, is the target's own matter. A `TargetAddress` holds names of files
and no secret, so it may be in a pickled piece of work: each process reads the files and its environment itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from stratalog.model.errors import Conflict, InvalidRequest
from stratalog_pipeline.cold.progress import Gap
from stratalog_pipeline.decode.columns import UnreadBatch

PASSWORD_VARIABLE: Final = "STRATALOG_SINK_PASSWORD"
CONNECT_S: Final = 10
REQUEST_S: Final = 120
"""A target that takes or answers nothing for this long fails the piece, which is tried again."""
DELETED: Final = "deleted before it was stored"
"""Why a gap is not in a target."""
_MOST_SECRET_BYTES: Final = 64 << 10


class TargetKind(StrEnum):
    POSTGRES = "postgres"
    ELASTICSEARCH = "elasticsearch"
    OPENSEARCH = "opensearch"
    CLICKHOUSE = "clickhouse"


@dataclass(frozen=True, slots=True)
class TargetAddress:
    kind: TargetKind
    url: str
    name: str
    """Of the table or index."""
    user: str = ""
    password_file: str = ""
    """Empty: the password is in PASSWORD_VARIABLE, or there is none."""
    ca_file: str = ""
    """Certificates to trust; empty: those that the system trusts."""

    def password(self) -> str:
        """Empty: none. Raises: InvalidRequest for a file that cannot be read."""
        if not self.password_file:
            return os.environ.get(PASSWORD_VARIABLE, "")
        path = Path(self.password_file)
        try:
            with path.open(encoding="utf-8") as file:
                return file.read(_MOST_SECRET_BYTES).rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise InvalidRequest(f"--password-file {path} cannot be read ({why})") from None


@dataclass(frozen=True, slots=True)
class SinkFacts:
    """Whose records a table or index holds. They never change."""

    cluster_id: str
    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class Lack:
    """Offsets `[from_offset, to_offset)` of a shard that are not in the target, and why not."""

    shard: int
    from_offset: int
    to_offset: int
    why: str


@dataclass(frozen=True, slots=True)
class TargetState:
    next_offsets: Mapping[int, int]
    """Of each shard, where it is read next. A shard that is not in it came later, and is read from 0."""
    lacks: Sequence[Lack] = ()
    fixed: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Of each shard, ranges that must be stored as they are: the end of each by its beginning."""


@dataclass(frozen=True, slots=True)
class ShardRange:
    shard: int
    from_offset: int
    to_offset: int


@dataclass(slots=True)
class Stored:
    """What came of a range."""

    records: int = 0
    was_there: bool = False
    """All of it was stored before."""
    unread: list[UnreadBatch] = field(default_factory=list)


ReadTables = Callable[[int, list[UnreadBatch]], Iterator[Any]]
"""Arrow record batches of a range's records from an offset on; batches that cannot be read are added to the list."""


class Target(Protocol):
    """For one thread. A context manager. All raise: Unavailable, Conflict, Forbidden, InvalidRequest."""

    def __enter__(self) -> Target: ...

    def __exit__(self, *_: object) -> None: ...

    def read(self, facts: SinkFacts) -> TargetState | None:
        """What the target has of the topic; None: nothing yet. Changes nothing.

        Raises: Conflict where its table or index is of something else."""
        ...

    def prepare(self, facts: SinkFacts, begins: Mapping[int, int]) -> TargetState:
        """Makes what is missing: a new one begins at `begins`. Raises: as `read`."""
        ...

    def accept(self, facts: SinkFacts, gaps: Sequence[Gap]) -> None:
        """Remembers offsets that are gone, and moves the progress behind them."""
        ...

    def store(self, facts: SinkFacts, wanted: ShardRange, read: ReadTables) -> Stored:
        """Stores what the target does not have of a range yet; may be repeated, and run twice at a time.

        Raises: Conflict where records before the range are missing."""
        ...


def check_facts(found: SinkFacts, expected: SinkFacts, source: str) -> None:
    """Raises: Conflict where `source` holds the records of something else."""
    if found.cluster_id != expected.cluster_id:
        raise Conflict(
            f"{source} holds records of cluster {found.cluster_id!r}, not of {expected.cluster_id!r}. A cluster that "
            "was restored from a snapshot has an id of its own, and from the snapshot on other records under the same "
            "offsets: name another --table"
        )
    if found.topic != expected.topic:
        raise Conflict(f"{source} holds records of topic {found.topic}, not of {expected.topic}: name another --table")
    if found.topic_id != expected.topic_id:
        raise Conflict(
            f"{source} holds records of topic {found.topic} with id {found.topic_id}, and the topic in the bucket has "
            f"id {expected.topic_id}: it was deleted and created again, and its offsets are those of other records. "
            "Name another --table"
        )


def out_of_order(wanted: ShardRange, next_offset: int, source: str) -> Conflict:
    return Conflict(
        f"{source} has shard {wanted.shard} up to offset {next_offset}, and offsets {wanted.from_offset} to "
        f"{wanted.to_offset} were to be stored: its progress was changed meanwhile. Run the job again"
    )
