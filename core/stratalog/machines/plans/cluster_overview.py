"""Derives the content of the cluster UI from the metadata: pure, so that the page itself decides nothing. Bounded:
shards are summed up, and the worst `MAX_TROUBLES` of those with troubles are named; nodes, retirements, mounts, stopped
shards and faults are limited lists, each with the number of further ones. Texts are cut at `LONGEST_TEXT`. An answer
has less than a megabyte, whatever the cluster holds.

A generator, because it reads each segment (about 5 us): the caller may do other work between two steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.machines.plans.heartbeat_history import LastHeartbeat
from stratalog.machines.plans.shard_troubles import Trouble, TroubleKind, troubles_of
from stratalog.machines.reading.bucket_reads import BucketReads
from stratalog.model.metadata import Node, Snapshot
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import RetireStep
from stratalog.model.segment import RemoteState, Segment, SegmentState
from stratalog.model.topic import Shard, Topic
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog.model.views.status_page import (
    MountRow,
    NodeRow,
    Overview,
    RetirementRow,
    ShardSums,
    StoppedRow,
    Tiers,
    TierSum,
    TroubleCount,
    TroubledShard,
)

T = TypeVar("T")

MAX_NODES: Final = 100
MAX_TROUBLES: Final = 20
MAX_STOPPED: Final = 50
MAX_RETIREMENTS: Final = 50
MAX_MOUNTS: Final = 50
MAX_FAULTS: Final = 50
MAX_NAMED: Final = 8
"""Topics of a mount, nodes of a trouble."""
LONGEST_TEXT: Final = 300
SILENT_MS: Final = 15_000
"""A node that counts as alive and has told nothing for longer is shown as silent."""
_SEGMENTS_PER_STEP: Final = 128

_WORST_FIRST: Final = (
    TroubleKind.NO_LEADER,
    TroubleKind.NO_SOURCE,
    TroubleKind.NO_COPY,
    TroubleKind.NO_PRODUCERS,
    TroubleKind.BELOW_MIN_IN_SYNC,
    TroubleKind.GIVEN_UP,
    TroubleKind.COPY_DIFFERS,
    TroubleKind.NOT_SEALED,
    TroubleKind.TOO_FEW_REPLICAS,
    TroubleKind.NOT_IN_SYNC,
    TroubleKind.TOO_FEW_COPIES,
)


@dataclass(frozen=True, slots=True)
class Known:
    """What the leading meta service knows."""

    cluster_id: str
    snapshot: Snapshot
    now_ms: int
    """By the clock of the records, and of what nodes told."""
    told: Callable[[int], LastHeartbeat | None]
    retirements: Sequence[RetirementStatus]
    why_no_changes: str | None = None
    service_faults: Sequence[str] = ()
    """What else is wrong with the service."""
    has_leases: bool = True
    """Nodes tell of themselves with heartbeats. Without leases they live in the service's own process."""
    min_in_sync: int = 1
    """The processes' `min.insync.replicas`, for topics that do not say otherwise."""


def overview(known: Known) -> Generator[None, None, Overview]:
    looked = _ShardLook(known)
    yield from looked.run()
    nodes = sorted(known.snapshot.nodes, key=lambda one: (one.is_retired, one.node_id))
    stopped, more_stopped = _stopped(known, nodes)
    faults = _faults(known, nodes)
    retirements = sorted(known.retirements, key=lambda one: (_is_over(one), one.node_id))
    mounts = sorted(known.snapshot.mounts, key=lambda one: (one.state is MountState.SERVING, one.name))
    return Overview(
        cluster_id=known.cluster_id,
        version=known.snapshot.version,
        now_ms=known.now_ms,
        why_no_changes=_cut(known.why_no_changes),
        nodes=tuple(_node(one, known, looked) for one in nodes[:MAX_NODES]),
        more_nodes=_more(nodes, MAX_NODES),
        shards=looked.sums(),
        tiers=looked.tiers(),
        trouble_kinds=tuple(
            TroubleCount(kind.value, looked.kinds[kind]) for kind in _WORST_FIRST if looked.kinds[kind]
        ),
        troubles=tuple(looked.worst()),
        more_troubles=max(0, looked.kinds.total() - MAX_TROUBLES),
        stopped=stopped,
        more_stopped=more_stopped,
        retirements=tuple(_retirement(one, known.now_ms) for one in retirements[:MAX_RETIREMENTS]),
        more_retirements=_more(retirements, MAX_RETIREMENTS),
        mounts=tuple(_mount(one) for one in mounts[:MAX_MOUNTS]),
        more_mounts=_more(mounts, MAX_MOUNTS),
        faults=tuple(_text(words) for words in faults[:MAX_FAULTS]),
        more_faults=_more(faults, MAX_FAULTS),
    )


# Shards ---------------------------------------------------------------------------------------------------------------
class _ShardLook:
    """One pass over all segments."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._nodes = {node.node_id: node for node in known.snapshot.nodes}
        self._topics = {topic.topic_id: topic for topic in known.snapshot.topics}
        self._bucket = BucketReads(known.snapshot.nodes)
        self.leads: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        self.kinds: Counter[TroubleKind] = Counter()
        self._named: dict[TroubleKind, list[tuple[Trouble, Segment]]] = {}
        self._segments = self._led = self._thin = self._troubled = self._open = 0
        self._places: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def run(self) -> Generator[None, None, None]:
        since = 0
        for shard in self._known.snapshot.shards:
            self._count_shard(shard)
            since += len(shard.segments)
            if since >= _SEGMENTS_PER_STEP:
                since = 0
                yield

    def _count_shard(self, shard: Shard) -> None:
        topic, last = self._topics[shard.key.topic_id], shard.segments[-1]
        self._segments += len(shard.segments)
        for segment in shard.segments:
            if segment.seal is None:
                self._open += 1
                continue
            place = place_of_sealed(segment)
            self._places[place] += 1
            self._bytes[place] += segment.seal.size_bytes
        if last.state is SegmentState.ACTIVE:
            self._count_active(topic, last)
        known = self._known
        found = list(troubles_of(topic, shard, self._nodes, known.now_ms, self._bucket, known.min_in_sync))
        self._troubled += bool(found)
        for trouble in found:
            self.kinds[trouble.kind] += 1
            named = self._named.setdefault(trouble.kind, [])
            if len(named) < MAX_TROUBLES:
                named.append((trouble, last))

    def _count_active(self, topic: Topic, segment: Segment) -> None:
        self.replicas.update(segment.replicas)
        leader = None if segment.leader is None else self._nodes.get(segment.leader)
        if leader is not None:
            self.leads[leader.node_id] += 1
            self._led += leader.is_alive and not segment.is_fenced
        in_sync = sum(node_id in self._nodes and self._nodes[node_id].is_alive for node_id in segment.isr)
        self._thin += in_sync < wanted_copies(topic, segment)

    def worst(self) -> Iterable[TroubledShard]:
        named = [one for kind in _WORST_FIRST for one in self._named.get(kind, ())]
        for trouble, active in named[:MAX_TROUBLES]:
            key = trouble.segment
            yield TroubledShard(
                _text(trouble.topic),
                key.shard,
                key.epoch,
                trouble.kind.value,
                _text(trouble.words),
                trouble.nodes[:MAX_NAMED],
                active.leader,
                active.replicas,
                active.isr,
            )

    def sums(self) -> ShardSums:
        snapshot = self._known.snapshot
        shards = len(snapshot.shards)
        return ShardSums(len(snapshot.topics), shards, self._segments, self._led, self._thin, self._troubled)

    def tiers(self) -> Tiers:
        sums = {place: TierSum(self._places[place], self._bytes[place]) for place in _PLACES}
        return Tiers(sums["local"], sums["both"], sums["cold"], sums["nowhere"], self._open)


_PLACES: Final = ("local", "both", "cold", "nowhere")


def place_of_sealed(segment: Segment) -> str:
    """A segment that is only partly in the object store counts as missing there: it still needs its nodes."""
    is_cold = segment.remote.state is RemoteState.COMPLETE
    if segment.local_nodes:
        return "both" if is_cold else "local"
    return "cold" if is_cold or segment.end_offset == segment.base_offset else "nowhere"


# Nodes ----------------------------------------------------------------------------------------------------------------
def _node(node: Node, known: Known, looked: _ShardLook) -> NodeRow:
    heartbeat = None if node.is_retired else known.told(node.node_id)
    vitals = None if heartbeat is None else heartbeat.vitals
    activity = None if vitals is None else vitals.activity
    return NodeRow(
        node_id=node.node_id,
        state=_state(node, heartbeat, known),
        address=_text(f"{node.host}:{node.port}"),
        rack=_cut(node.rack),
        leads=looked.leads[node.node_id],
        replicas=looked.replicas[node.node_id],
        told_ms_ago=-1 if heartbeat is None else max(0, known.now_ms - heartbeat.at_ms),
        disk_free_bytes=-1 if vitals is None else vitals.disk_free_bytes,
        disk_total_bytes=-1 if vitals is None else vitals.disk_total_bytes,
        has_room=node.has_room,
        uploads=None if activity is None else activity.uploads,
        troubles=() if activity is None else tuple(map(_text, activity.troubles[:MAX_NAMED])),
        stopped_shards=0 if activity is None else activity.stopped_shards,
        page_url="" if activity is None else _text(activity.page_url),
        can_write=node.can_write or not node.is_alive,
        mounts=tuple(_text(mount.name) for mount in known.snapshot.mounts if _is_of(mount, node))[:MAX_NAMED],
    )


def _is_of(mount: Mount, node: Node) -> bool:
    """What the node held is read by way of it."""
    return mount.mode is not MountMode.HAND_MADE and mount.node_id == node.node_id


def _state(node: Node, heartbeat: LastHeartbeat | None, known: Known) -> str:
    if node.is_retired:
        return "retired"
    if not node.is_alive:
        return "not alive"
    if known.has_leases and (heartbeat is None or known.now_ms - heartbeat.at_ms > SILENT_MS):
        return "silent"
    return "leaves" if node.is_leaving else "alive"


def _stopped(known: Known, nodes: Sequence[Node]) -> tuple[tuple[StoppedRow, ...], int]:
    rows: list[StoppedRow] = []
    count = 0
    for node in nodes:
        heartbeat = known.told(node.node_id)
        if not node.is_alive or heartbeat is None or heartbeat.vitals.activity is None:
            continue
        count += heartbeat.vitals.activity.stopped_shards
        for one in heartbeat.vitals.activity.stopped:
            cut = one._replace(topic=_text(one.topic), reason=_text(one.reason), next_step=_text(one.next_step))
            rows.append(StoppedRow(node.node_id, cut))
    shown = tuple(rows[:MAX_STOPPED])
    return shown, max(0, count - len(shown))


def _faults(known: Known, nodes: Sequence[Node]) -> list[str]:
    found = [] if known.why_no_changes is None else [f"metadata: {known.why_no_changes}"]
    found += known.service_faults
    for node in nodes:
        heartbeat = known.told(node.node_id)
        state = _state(node, heartbeat, known)
        name = f"node {node.node_id}"
        if state == "not alive":
            found.append(
                f"{name} is not alive: start it; if it is lost for good, `stratalog nodes retire {node.node_id}`"
            )
        if state == "silent":
            silent = f"{name} has reported nothing for over {SILENT_MS // 1_000} s, so its figures are old or missing"
            found.append(f"{silent}: wait; if it lasts, see its log")
        if node.is_alive and not node.has_room:
            found.append(f"{name}: its disk is nearly full, and new segments go to other nodes: make room")
        if node.is_alive and not node.can_write:
            found.append(
                f"{name} is stuck: its disk makes no progress, and other nodes lead what it led, if they can: see its "
                "log and the disk, then restart it"
            )
        activity = None if heartbeat is None or not node.is_alive else heartbeat.vitals.activity
        if activity is None:
            continue
        found += [f"{name}: {words}" for words in activity.troubles[:MAX_NAMED]]
        if activity.uploads is not None and activity.uploads.store_away_ms:
            away = f"the object store has taken no uploads for {activity.uploads.store_away_ms // 1_000} s"
            found.append(f"{name}: {away}: see the log of the node, and test the bucket with `stratalog doctor URL`")
    return found


# The rest -------------------------------------------------------------------------------------------------------------
def _is_over(status: RetirementStatus) -> bool:
    return status.retirement.step is RetireStep.DONE


def _retirement(status: RetirementStatus, now_ms: int) -> RetirementRow:
    record, wait = status.retirement, status.retirement.wait
    return RetirementRow(
        node_id=status.node_id,
        step=record.step.value,
        mode=record.mode.value,
        for_ms=max(0, now_ms - record.step_since_ms),
        waits=None if wait is None else wait.reason.value,
        waits_ms=0 if wait is None else max(0, now_ms - wait.since_ms),
        words=_text(status.words),
        remaining_segments=status.remaining_segments,
        remaining_bytes=status.remaining_bytes,
        bytes_per_second=status.bytes_per_second,
        seconds_left=status.seconds_left,
    )


def _mount(mount: Mount) -> MountRow:
    volume = mount.volume
    is_hand_made = mount.mode is MountMode.HAND_MADE
    return MountRow(
        name=_text(mount.name),
        mode=mount.mode.value,
        state=mount.state.value,
        holder=mount.holder,
        token=mount.token,
        volume=None if volume is None else _text(f"{volume.host}:{volume.port}"),
        topics=tuple(_text(topic.as_topic(mount).name) for topic in mount.topics[:MAX_NAMED]),
        expires_ms=mount.expires_ms,
        is_read=is_hand_made
        or (mount.state is MountState.SERVING and (mount.mode, volume) != (MountMode.VOLUME, None)),
    )


def _more(items: Sequence[T], most: int) -> int:
    return max(0, len(items) - most)


def _text(words: str) -> str:
    return words if len(words) <= LONGEST_TEXT else words[: LONGEST_TEXT - 1] + "…"


def _cut(words: str | None) -> str | None:
    return None if words is None else _text(words)
