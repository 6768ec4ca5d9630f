"""What of all segments still needs the nodes that leave, counted once for all of them.

Pure. Cost: under a microsecond a segment that none of them has, in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from stratalog.machines.copies.leaving import (
    Need,
    Presence,
    is_given_up,
    is_kept_directory,
    is_led,
    is_lost_for_good,
    is_waited_for_in_vain,
    missed_for_majority,
    need_of,
    unheld_of,
)
from stratalog.machines.copies.recovery_rule import is_quorum
from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.machines.reading.bucket_reads import BucketReads, is_copied_from_bucket
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mounts import Mount, MountMode
from stratalog.model.retirement import MAX_UNHELD_LISTED, UnheldRange
from stratalog.model.segment import RemoteState, Segment
from stratalog.model.topic import Topic

_NAMED: Final = 10
_ABANDONED_AT_ONCE: Final = 100
_SEGMENTS_PER_STEP: Final = 256

Named = TypeVar("Named", SegmentKey, UnheldRange)


@dataclass(slots=True)
class Found(Generic[Named]):
    """Segments of one kind. Bytes are of batches."""

    count: int = 0
    bytes: int = 0
    first: list[Named] = field(default_factory=list)
    """The first of them; of kinds that are named at all."""

    def add(self, size_bytes: int = 0) -> None:
        self.count += 1
        self.bytes += size_bytes

    def add_named(self, named: Named, size_bytes: int = 0, most: int = _NAMED) -> None:
        self.add(size_bytes)
        if len(self.first) < most:
            self.first.append(named)


@dataclass(slots=True)
class Survey:
    """Of one node. Bytes are of batches."""

    segments: int = 0
    """That list it."""
    to_see: int = 0
    """Those that are not empty: a check must report this many."""
    bytes: int = 0
    open: Found[SegmentKey] = field(default_factory=Found)
    stuck: Found[SegmentKey] = field(default_factory=Found)
    """Open, without a living leader."""
    short: Found[SegmentKey] = field(default_factory=Found)
    """Open, with a living leader, but with too few living replicas for the majority that they need."""
    short_nodes: set[int] = field(default_factory=set)
    """The nodes that are missing there."""
    abandoned: list[SegmentKey] = field(default_factory=list)
    """Open, and the nodes that would have to answer are gone for good, or were given up like this node; at most as many
    as are ended at once."""
    uploads: Found[SegmentKey] = field(default_factory=Found)
    """Sealed, not kept without it, and on their way into the object store; the bytes are of what is not there yet."""
    copies: Found[SegmentKey] = field(default_factory=Found)
    """Sealed, not kept without it, and without a remote tier that readers may use: nodes that stay copy them."""
    kept: Found[SegmentKey] = field(default_factory=Found)
    """Sealed, and only the directories of other retired nodes have them, no living node."""
    kept_untiered: int = 0
    """Of them those that no holder of a mount uploads."""
    kept_here: int = 0
    """Those of them that the node has a copy of as well, while it is not alive."""
    directories: set[int] = field(default_factory=set)
    """Whose those are."""
    unread: set[int] = field(default_factory=set)
    """The retired nodes among them whose directories are not served now."""
    away: Found[SegmentKey] = field(default_factory=Found)
    """The node lives and has no copy, and only dead nodes have one."""
    away_nodes: set[int] = field(default_factory=set)
    """The nodes that are missing there."""
    away_directories: set[int] = field(default_factory=set)
    """Whose directories are: a person gave these nodes up, and no process reads them."""
    gone: Found[SegmentKey] = field(default_factory=Found)
    """The node lives and has no copy, and who had one was given up by force, with it."""
    gone_nodes: set[int] = field(default_factory=set)
    """The nodes that they were lost with."""
    lost: Found[UnheldRange] = field(default_factory=Found)
    """The node is not alive, and no other node has them."""
    lost_open: Found[UnheldRange] = field(default_factory=Found)
    """Open, and no living node is a replica of them."""

    @property
    def unheld(self) -> tuple[UnheldRange, ...]:
        """The first segments that no living node has, sealed ones before open ones."""
        return (*self.lost.first, *self.lost_open.first)[:MAX_UNHELD_LISTED]

    @property
    def unheld_count(self) -> int:
        return self.lost.count + self.lost_open.count

    @property
    def _needed(self) -> tuple[Found[SegmentKey] | Found[UnheldRange], ...]:
        return self.uploads, self.copies, self.kept, self.away, self.gone, self.lost

    @property
    def needed_count(self) -> int:
        """Sealed segments that are not kept without it."""
        return sum(found.count for found in self._needed)

    @property
    def remaining_segments(self) -> int:
        return self.open.count + self.needed_count

    @property
    def remaining_bytes(self) -> int:
        return sum(found.bytes for found in self._needed)


@dataclass(frozen=True, slots=True)
class _Lives:
    """Of the nodes, by id."""

    alive: frozenset[int]
    staying: frozenset[int]
    presence: Presence
    directories: Mapping[int, bool]
    """Retired nodes whose directories count as copies, and whether each is read now."""
    by_id: Mapping[int, Node]


@dataclass(frozen=True, slots=True)
class _Tiers:
    """What the object store does for a topic."""

    may_read_bucket: bool
    frees_nodes: bool
    """Nodes upload it, and a copy there is enough to let a node go."""


def _lives(nodes: Iterable[Node], mounts: Iterable[Mount]) -> _Lives:
    nodes = tuple(nodes)
    mount_of = {mount.node_id: mount for mount in mounts if mount.mode is not MountMode.HAND_MADE}
    directories = {
        node.node_id: (mount := mount_of.get(node.node_id)) is not None and mount.volume is not None
        for node in nodes
        if is_kept_directory(node.retirement, mount_of.get(node.node_id))
    }
    alive = frozenset(node.node_id for node in nodes if node.is_alive)
    gone = frozenset(node.node_id for node in nodes if node.is_leaving and not node.is_alive)
    staying = frozenset(node.node_id for node in nodes if node.is_alive and not node.is_leaving)
    given_up = frozenset(node.node_id for node in nodes if is_given_up(node.retirement, is_alive=node.is_alive))
    presence = Presence(alive.__contains__, given_up.__contains__, gone.__contains__)
    return _Lives(alive, staying, presence, directories, {node.node_id: node for node in nodes})


def survey_nodes(snapshot: Snapshot, is_tiered: Callable[[Topic], bool]) -> Generator[None, None, dict[int, Survey]]:
    """One for each node that leaves, or wishes to; in steps. Returns them with the last one."""
    leaving = {node.node_id: node for node in snapshot.nodes if node.retirement is not None and not node.is_retired}
    found = {node_id: Survey() for node_id in leaving}
    if not leaving:
        return found
    topics = {topic.topic_id: topic for topic in snapshot.topics}
    lives = _lives(snapshot.nodes, snapshot.mounts)
    bucket = BucketReads(snapshot.nodes)
    number = 0
    for shard in snapshot.shards:
        topic = topics[shard.key.topic_id]
        reads = bucket.of(topic)
        tiers = _Tiers(reads, reads and is_tiered(topic))
        for segment in shard.segments:
            wanted = min(wanted_copies(topic, segment), len(lives.staying))
            number += 1
            if number % _SEGMENTS_PER_STEP == 0:
                yield
            for node_id in {*segment.replicas, *segment.local_nodes} & leaving.keys():
                survey = found[node_id]
                _count(survey, segment, topic, leaving[node_id], wanted, lives, tiers)
    return found


def _count(
    survey: Survey, segment: Segment, topic: Topic, node: Node, wanted: int, lives: _Lives, tiers: _Tiers
) -> None:
    assert node.retirement is not None
    is_staying = lives.staying.__contains__
    mode = node.retirement.mode
    need = need_of(segment, node.node_id, mode, wanted, is_staying, may_read_bucket=tiers.may_read_bucket)
    size = 0 if segment.seal is None else segment.seal.size_bytes
    if need is Need.NONE:
        return
    survey.segments += 1
    survey.to_see += segment.end_offset != segment.base_offset
    survey.bytes += size
    match need:
        case Need.KEPT:
            return
        case Need.OPEN:
            _count_open(survey, segment, topic, lives)
        case Need.ONLY_HERE if is_copied_from_bucket(segment):
            survey.copies.add(size)
        case Need.ONLY_HERE if lives.directories.keys() & {*segment.local_nodes} and not _is_alive(segment, lives):
            _count_kept(survey, segment, _unsent_bytes(segment, size), lives, tiers.frees_nodes)
            survey.kept_here += node.node_id in segment.local_nodes
        case Need.ONLY_HERE if node.is_alive and not _is_alive(segment, lives):
            _count_away(survey, segment, _unsent_bytes(segment, size), lives)
        case Need.ONLY_HERE if not _is_alive(segment, lives):
            survey.lost.add_named(unheld_of(segment, topic.name), _unsent_bytes(segment, size), MAX_UNHELD_LISTED)
        case _ if tiers.frees_nodes:
            survey.uploads.add(_unsent_bytes(segment, size))
        case _:
            survey.copies.add(size)


def _is_alive(segment: Segment, lives: _Lives) -> bool:
    """Whether a living node has proven a copy of the sealed segment."""
    return not lives.alive.isdisjoint(segment.local_nodes)


def _count_away(survey: Survey, segment: Segment, size_bytes: int, lives: _Lives) -> None:
    """No living node has it, including the leaving one, and no directory that counts."""
    if is_lost_for_good(segment, lives.by_id.get, lives.alive.__contains__):
        survey.gone.add_named(segment.key, size_bytes)
        survey.gone_nodes |= {*segment.local_nodes}
        return
    survey.away.add_named(segment.key, size_bytes)
    retired = {one for one in segment.local_nodes if (node := lives.by_id.get(one)) is not None and node.is_retired}
    survey.away_nodes |= {*segment.local_nodes} - retired
    survey.away_directories |= retired


def _count_kept(survey: Survey, segment: Segment, size_bytes: int, lives: _Lives, is_tiered: bool) -> None:
    directories = lives.directories.keys() & {*segment.local_nodes}
    survey.kept.add_named(segment.key, size_bytes)
    survey.kept_untiered += not is_tiered
    survey.directories |= directories
    survey.unread |= {one for one in directories if not lives.directories[one]}


def _count_open(survey: Survey, segment: Segment, topic: Topic, lives: _Lives) -> None:
    survey.open.add_named(segment.key)
    by_quorum, presence = is_quorum(topic.settings), lives.presence
    if not lives.alive.intersection(segment.replicas):
        survey.lost_open.add_named(unheld_of(segment, topic.name), most=MAX_UNHELD_LISTED)
    if not is_led(segment, presence):
        survey.stuck.add_named(segment.key)
    elif by_quorum and (missed := missed_for_majority(segment, presence.is_alive, presence.is_gone)):
        survey.short.add_named(segment.key)
        survey.short_nodes |= missed
    if is_waited_for_in_vain(segment, by_quorum, presence):
        survey.abandoned += [segment.key][: _ABANDONED_AT_ONCE - len(survey.abandoned)]


def _unsent_bytes(segment: Segment, size_bytes: int) -> int:
    """Of a sealed segment, what is not committed in the object store; by its share of the offsets."""
    if segment.remote.state is RemoteState.NONE or segment.end_offset is None:
        return size_bytes
    left = segment.end_offset - max(segment.remote.commit_offset, segment.base_offset)
    return size_bytes * left // max(segment.end_offset - segment.base_offset, 1)
