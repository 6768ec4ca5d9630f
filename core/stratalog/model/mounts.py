"""Mounts: sealed data that is served read-only, under a lock that names the one node which looks after it.

A retired node's data set is mounted under the name of its write lock, `tier/<node id>`. Plain immutable data.
Source: docs/scaling-spec.md, docs/design.md section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID, uuid5

from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.topic import Topic

DATA_SET_PREFIX: Final = "tier/"
_MOST_DIGITS: Final = 10


def data_set_name(node_id: int) -> str:
    """Of a node's data set: of its write lock, and of its mount once the node is retired."""
    return f"{DATA_SET_PREFIX}{node_id}"


def node_of_data_set(name: str) -> int | None:
    """The node whose data set has that name."""
    number = name.removeprefix(DATA_SET_PREFIX)
    is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    return int(number) if is_number and name == data_set_name(int(number)) else None


class MountMode(StrEnum):
    OFFLOAD = "offload"
    """All of the data set is in the object store; nothing of it lies on a disk but what the cache has."""
    VOLUME = "volume"
    """It lies in the retired node's directory, which a process serves that writes nothing there."""
    HAND_MADE = "hand-made"
    """Sealed ranges of topics, under another name and until they expire; the leaders of the shards serve them."""


class MountState(StrEnum):
    WAITING = "waiting"
    """It has no holder: no node that may hold it is alive."""
    TAKING = "taking"
    """It has a holder, which has not said yet that it can read what is mounted."""
    SERVING = "serving"


@dataclass(frozen=True, slots=True)
class Volume:
    """Where a retired node's directory is read, by a process that writes nothing there."""

    host: str
    port: Int32
    start_id: str
    """Of that process."""


class OffsetRange(NamedTuple):
    base_offset: Count
    end_offset: Count


@dataclass(frozen=True, slots=True)
class MountedTopic:
    """The part of a topic that a person mounted: a range of whole sealed segments for each shard that it had."""

    topic_id: UUID
    name: str
    ranges: tuple[OffsetRange, ...]

    def as_topic(self, mount: Mount) -> Topic:
        """As clients see it: `flights@2013-01`. Its id is its own: what is said of it is not said of the topic."""
        topic_id = uuid5(self.topic_id, f"{mount.name} {mount.created_ms}")
        return Topic(f"{self.name}@{mount.name}", topic_id, len(self.ranges), 1, {}, mount.created_ms)


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. `token` is the epoch of the write lock of the same name: it grows with each holder and never goes
    back, so what an earlier holder asks for is refused."""

    name: str
    mode: MountMode
    node_id: CountOrNone
    """The retired node whose data set it is; -1 for a mount that a person made."""
    storage_id: str
    """Of that node's directory, so that no other passes for it."""
    state: MountState
    token: Count
    created_ms: Count
    rack: str | None = None
    """Where the retired node stood."""
    holder: Int32 | None = None
    holder_epoch: Count = 0
    """Of the holder's life: in its next one it takes the mount again."""
    volume: Volume | None = None
    """In volume mode: where the directory is read now; None while it is not."""
    topics: tuple[MountedTopic, ...] = ()
    """The topics of a mount that a person made."""
    expires_ms: Count = 0
    """When it ends by itself, by the service's clock; 0: never."""
    is_doubted: bool = False
    """Its present holder asked where the directory is read, and had no answer."""
