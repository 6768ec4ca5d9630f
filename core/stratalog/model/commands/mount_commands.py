"""What may be asked of the meta service about mounts (docs/scaling-spec.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog.model.bounds import Count, Int32
from stratalog.model.commands.command import NodeCommand
from stratalog.model.cut import CutShard
from stratalog.model.mounts import Mount, MountMode


@dataclass(frozen=True, slots=True)
class BeginMount(NodeCommand[Mount]):
    """Mount the data set of a retired node: its write lock goes to a living node that the service chooses, for good.
    Asked again it is answered as it is. Raises Conflict while the node's own lease or lock lasts, NotFound for a node
    that never was, and Conflict for another storage id or mode than the present ones."""

    is_idempotent = True

    node_id: Int32
    storage_id: str
    mode: MountMode


@dataclass(frozen=True, slots=True)
class TakeMount(NodeCommand[Mount]):
    """The caller, which the record names as the holder, can read the mounted data and looks after it. A repetition
    checks whether that is still so. Raises Fenced for another holder, life or token."""

    is_idempotent = True

    name: str
    token: Count


@dataclass(frozen=True, slots=True)
class ReleaseMount(NodeCommand[None]):
    """The caller cannot hold it any longer: another is chosen, where there is one. What is not the caller's under this
    token (any more) is left as it is."""

    is_idempotent = True

    name: str
    token: Count


@dataclass(frozen=True, slots=True)
class MoveMount(NodeCommand[Mount]):
    """Another node shall hold it: the named one, or one that the service chooses. Raises NotFound, and Conflict for a
    node that cannot."""

    name: str
    node_id: Int32 | None = None


@dataclass(frozen=True, slots=True)
class EndMount(NodeCommand[None]):
    """No node looks after it any more, and its lock is free. Raises Conflict while a sealed segment is nowhere but in
    what is mounted, unless that is given up by force; InvalidRequest for a force that names another disk."""

    is_idempotent = True

    name: str
    force_storage_id: str | None = None
    """Of the retired node, spelled out: its directory is lost, and what nothing but it has is given up."""


# The directory of a node that was retired in volume mode ------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class OpenVolume(NodeCommand[Mount]):
    """A process reads the retired node's directory, and answers other nodes at this address. One that comes later takes
    its place. Raises NotFound where no such data set is mounted, Conflict for another disk, or where the set is mounted
    in another mode."""

    is_idempotent = True

    node_id: Int32
    storage_id: str
    host: str
    port: Int32
    start_id: str
    """Made again by each start: who sees another one in the record knows that its time is over."""


@dataclass(frozen=True, slots=True)
class CloseVolume(NodeCommand[None]):
    """That process stops in order. What is not open under this start (any more) is left as it is."""

    is_idempotent = True

    node_id: Int32
    start_id: str


NOT_ASKED: Final = ""
"""No process has that start: of the directory nothing is said."""


@dataclass(frozen=True, slots=True)
class DoubtMount(NodeCommand[Mount]):
    """The holder could not read what is mounted a moment ago: it serves again once it has said so. Passed over where
    another process reads the directory by now. Raises Fenced as TakeMount does."""

    is_idempotent = True

    name: str
    token: Count
    start_id: str | None = None
    """Of the process that it asked for a retired directory; `NOT_ASKED`: it wants to know whether the token is good."""


# By hand ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CreateMount(NodeCommand[Mount]):
    """Let what is sealed of these topics, and has something from `from_ms` up to, not with, `until_ms`, be read under
    `TOPIC@name`, by whole segments. Raises AlreadyExists, NotFound where there is nothing, InvalidRequest."""

    name: str
    topics: tuple[str, ...]
    from_ms: int
    until_ms: int
    lasts_ms: Count = 0
    """It ends by itself after so long; 0: never."""
    snapshot: str = ""
    """Instead of a time: what a snapshot in the bucket has of these topics, to the offset; of all of its topics where
    none is named. Raises Unavailable where the bucket does not answer, InvalidRequest in a service that has none."""


@dataclass(frozen=True, slots=True)
class MountCut(NodeCommand[Mount]):
    """What the service makes of a `CreateMount` that names a snapshot: let `[log_start_offset, end_offset)` of these
    shards, as far as retention has left it, be read under `TOPIC@name`. Raises as `CreateMount`, and Conflict where not
    all of it is sealed, or the log went another way since."""

    name: str
    shards: tuple[CutShard, ...]
    lasts_ms: Count = 0


MountCommand: TypeAlias = (
    CreateMount
    | MountCut
    | BeginMount
    | TakeMount
    | DoubtMount
    | ReleaseMount
    | MoveMount
    | EndMount
    | OpenVolume
    | CloseVolume
)
