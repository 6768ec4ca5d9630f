"""Decides what a retirement does next: from what is observed to a step, actions and the reason of a wait. Only the
retirement's record is kept between two passes (times, checks, what was written): the step follows from the present
segments, nodes and sightings. So any leader of the meta service may call it any number of times, and a step that no
longer holds is repeated.
Invariant: `Release` is planned only when nothing needs the node, or a person gave up what does; the table's transaction
checks that again (`machines.table.retirement`).

Pure. Source: docs/scaling-spec.md section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from stratalog.machines.copies.leaving import HANDOVER_MS
from stratalog.machines.copies.leaving_survey import Survey
from stratalog.machines.copies.recovery_rule import MIN_IN_SYNC, least_in_sync
from stratalog.machines.copies.wanted_copies import next_copies
from stratalog.machines.plans.retirement_messages import (
    away_message,
    gone_message,
    kept_message,
    named,
    size_of,
)
from stratalog.model.counting import counted
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Node, Vitals
from stratalog.model.mounts import data_set_name
from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Sighting, WaitReason
from stratalog.model.topic import Topic

HEADROOM_PERCENT: Final = 20
"""Of each disk stays free when it takes copies,"""
SLIGHT_PERCENT: Final = 1
"""unless they are so little of what is free there that the disk is hardly fuller with them."""
STALL_MS: Final = 60_000
"""A retirement without progress for this long is reported as making no progress."""
SIGHTING_LASTS_MS: Final = 600_000
"""What was seen longer ago, by the service's clock, is looked at again before the node is let go of."""
_STAYS: Final = ("stays", "stay")
_HAS: Final = ("has", "have")


class Served(Enum):
    """How the released node's data set is served. Closed."""

    NOT_NEEDED = "nothing of it is left to serve"
    ABSENT = "no node was asked to serve it"
    NO_HOLDER = "no node can take it"
    PENDING = "one has it and does not serve it yet"
    SERVING = "one serves it"


@dataclass(frozen=True, slots=True)
class Why:
    """A reason to wait, with its numbers."""

    reason: WaitReason
    words: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The input of a pass."""

    node: Node
    """With its retirement."""
    survey: Survey
    blocks: tuple[Why, ...]
    """What `preflight` says now."""
    now_ms: int
    """By the service's clock, as the times of the record."""
    verify_interval_ms: int
    has_store: bool = True
    """Nodes that stay have an object store."""
    store_away_ms: int = 0
    """How long an uploading node has had no answer from it."""
    stalled_ms: int = 0
    """For so long nothing of it has moved (`retirement_input.mark_of`)."""
    mount: Served = Served.NOT_NEEDED
    is_in_line: bool = False
    """Another node is released before it (`retirement_input.Turns`)."""
    next_check_by: int | None = None
    """The node that shall check next whether everything is there; None: no node."""
    has_other_checks: bool = False
    """That node looks after others that leave, too, one after another."""


@dataclass(frozen=True, slots=True)
class Release:
    """The point of no return."""


@dataclass(frozen=True, slots=True)
class EndOpen:
    """End segments that wait only for nodes that were given up, at their best known end: a person forced that."""

    segments: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class AskMount:
    """Have another node take the write lock and serve the set."""


Action: TypeAlias = Release | EndOpen | AskMount


@dataclass(frozen=True, slots=True)
class Planned:
    step: RetireStep
    why: Why | None = None
    actions: tuple[Action, ...] = ()


def plan(seen: Observed) -> Planned:
    """Requires: the node has a retirement."""
    record = seen.node.retirement
    assert record is not None, "its retirement was not requested"
    if record.step.is_released:
        return _after_release(seen)
    if not record.is_cordoned:
        if seen.blocks and not _gives_up(seen, record):
            return Planned(RetireStep.PREFLIGHT, seen.blocks[0])
        return Planned(RetireStep.CORDON)
    survey = seen.survey
    if survey.open.count:
        return _sealing(seen, record)
    if survey.needed_count and not _gives_up(seen, record):
        return Planned(RetireStep.OFFLOAD, _why_offload_waits(seen))
    if not _gives_up(seen, record):
        if not is_verified(record.sightings, seen.verify_interval_ms, survey.to_see, seen.now_ms):
            return Planned(RetireStep.VERIFY, _why_verify_waits(seen, record.sightings))
        if seen.has_store and record.inventory_key is None:
            return Planned(RetireStep.SNAPSHOT, _why_inventory_waits(seen))
        if seen.blocks:
            return Planned(RetireStep.SNAPSHOT, seen.blocks[0])
        if seen.is_in_line and not _was_refused(record):
            return Planned(RetireStep.SNAPSHOT, _RELEASE_WAITS)
    return Planned(RetireStep.SNAPSHOT, _why_release_is_refused(seen, record), (Release(),))


def _gives_up(seen: Observed, record: Retirement) -> bool:
    """By a person's word, of a node that is not there: one that comes back may have it all."""
    return record.is_forced and not seen.node.is_alive


def _after_release(seen: Observed) -> Planned:
    match seen.mount:
        case Served.NOT_NEEDED | Served.SERVING:
            return Planned(RetireStep.DONE)
        case Served.ABSENT:
            return Planned(RetireStep.MOUNT, _why_mount_is_absent(seen), (AskMount(),))
        case Served.NO_HOLDER:
            words = f"no node can take the data set of node {seen.node.node_id} now"
            return Planned(RetireStep.MOUNT, Why(WaitReason.NO_MOUNT_HOLDER, words))
        case Served.PENDING:
            words = f"the data set of node {seen.node.node_id} has a holder, which does not serve it yet"
            if is_volume(seen.node):
                words += ": where its directory is, `stratalog node start --read-only --data DIR --meta URL` must run; "
                words += (
                    f"if its disk is gone, `stratalog mounts end {data_set_name(seen.node.node_id)} --force "
                    f"{seen.node.storage_id}` gives up what it alone has"
                )
            return Planned(RetireStep.MOUNT, Why(WaitReason.MOUNT_PENDING, words))


def _sealing(seen: Observed, record: Retirement) -> Planned:
    survey = seen.survey
    actions: tuple[Action, ...] = ()
    if survey.abandoned and _gives_up(seen, record):
        actions = (EndOpen(tuple(survey.abandoned)),)
    return Planned(RetireStep.SEAL, _why_seal_waits(seen), actions)


def _why_seal_waits(seen: Observed) -> Why | None:
    survey, node = seen.survey, seen.node
    opened = counted(survey.open.count, "open segment")
    if survey.stuck.count:
        words = (
            f"{survey.stuck.count:,} of {opened} without a living leader, such as {named(survey.stuck.first)}: GET "
            "/v1/troubles says which nodes each waits for"
        )
        return Why(WaitReason.SHARD_UNAVAILABLE, words)
    if survey.short.count:
        words = (
            f"{survey.short.count:,} of {opened} acknowledged by a majority of the replicas, too few of which live, "
            f"such as {named(survey.short.first)}; nodes {sorted(survey.short_nodes)} are not alive: start them; if "
            "a disk is gone, `stratalog nodes retire ID --force STORAGE-ID` of that node gives it up"
        )
        if node.node_id in survey.short_nodes:
            words += f", here `stratalog nodes retire {node.node_id} --force {node.storage_id}`"
        return Why(WaitReason.SHARD_UNAVAILABLE, words)
    if seen.stalled_ms >= STALL_MS:
        words = (
            f"{opened} not sealed, such as {named(survey.open.first)}: their leaders live, and none has got on for "
            f"{_seconds(seen.stalled_ms)}: GET /v1/troubles says whose word each waits for, and the logs of these "
            "nodes why"
        )
        return Why(WaitReason.SHARD_UNAVAILABLE, words)
    return None


def _why_offload_waits(seen: Observed) -> Why | None:
    survey = seen.survey
    if survey.lost.count:
        node = seen.node
        words = (
            f"node {node.node_id} is not alive, and no other node has {counted(survey.lost.count, 'sealed segment')} "
            f"({size_of(survey.lost.bytes)}), such as {named([lost.segment for lost in survey.lost.first])} "
            f"(`stratalog nodes status {node.node_id}` lists them): start it; if its disk is gone, `stratalog nodes "
            f"retire {node.node_id} --force {node.storage_id}` gives them up"
        )
        return Why(WaitReason.LAST_COPY_LOST, words)
    if survey.away.count:
        return Why(WaitReason.LAST_COPY_LOST, away_message(survey, seen.node.node_id))
    if survey.gone.count:
        return Why(WaitReason.LAST_COPY_LOST, gone_message(survey, seen.node.node_id))
    if survey.kept_untiered or survey.unread:
        # Waits that end by themselves come after those that do not.
        return Why(WaitReason.UNDER_REPLICATED, kept_message(survey, seen.node))
    if survey.uploads.count and (away := _store_away(seen)) is not None:
        return away
    if survey.uploads.count and seen.stalled_ms >= STALL_MS:
        words = (
            f"not in the object store yet: {counted(survey.uploads.count, 'segment')}, "
            f"{size_of(survey.uploads.bytes)}; no progress for {seen.stalled_ms // 1_000} s: see the uploads of the "
            "nodes"
        )
        return Why(WaitReason.STORE_UNREACHABLE, words)
    if survey.copies.count:
        words = (
            f"no remote tier to read from, and too few copies on the nodes that stay: "
            f"{counted(survey.copies.count, 'segment')}, {size_of(survey.copies.bytes)}; being copied there"
        )
        return Why(WaitReason.UNDER_REPLICATED, words)
    return Why(WaitReason.UNDER_REPLICATED, kept_message(survey, seen.node)) if survey.kept.count else None


def _why_verify_waits(seen: Observed, sightings: Sequence[Sighting]) -> Why | None:
    away = _store_away(seen)
    if away is not None:
        return away
    node = seen.node
    if is_volume(node) and not node.is_alive:
        words = (
            f"node {node.node_id} is not alive, so the files of its volume cannot be checked: start it, or cancel and "
            "retire it in offload mode, by which what others and the bucket have is enough"
        )
        return Why(WaitReason.UNKNOWN_SEGMENTS, words)
    if seen.next_check_by is None:
        words = f"no other node is alive and stays that could check what node {node.node_id} held: start one"
        return Why(WaitReason.LAST_NODE, words)
    if not sightings or sightings[-1].is_clean:
        return _why_check_waits(seen, sightings)
    last = sightings[-1]
    reason = WaitReason.DIGEST_MISMATCH if last.is_differing else WaitReason.UNKNOWN_SEGMENTS
    words = (
        f"node {last.by_node} could not confirm {last.unconfirmed_count:,} of {counted(last.segments, 'segment')}, "
        f"such as {named(last.unconfirmed)}: {last.words}"
    )
    return Why(reason, words)


_RELEASE_WAITS: Final = Why(
    WaitReason.RELEASE_IN_PROGRESS,
    "nodes that leave are released one at a time, each once the data set of the one before is served, or "
    f"{HANDOVER_MS // 1_000} s after that one was released: this one waits for its turn",
)
"""The same words for all that wait, however many turns there are: none of their records is written again at a turn."""


def _was_refused(record: Retirement) -> bool:
    """It was its turn, and the check at the release found that something needs it: it keeps no other waiting, and is
    tried again beside them."""
    wait = record.wait
    return record.step is RetireStep.SNAPSHOT and wait is not None and wait.reason is WaitReason.UNKNOWN_SEGMENTS


def _why_check_waits(seen: Observed, sightings: Sequence[Sighting]) -> Why | None:
    to_see = seen.survey.to_see
    if sightings and sightings[-1].segments < to_see:
        last = sightings[-1]
        words = (
            f"node {last.by_node} could tell of {last.segments:,} of {counted(to_see, 'segment')}: the others turned "
            f"up since, or its metadata lag; node {seen.next_check_by} looks next"
        )
        return Why(WaitReason.UNKNOWN_SEGMENTS, words)
    if seen.stalled_ms >= STALL_MS + 2 * seen.verify_interval_ms:
        if seen.has_other_checks:
            words = (
                f"node {seen.next_check_by}, which checks {counted(to_see, 'segment')}, checks what other nodes held, "
                "too, one after another: this one waits for its turn; if none of them gets on, see its log"
            )
            return Why(WaitReason.CHECK_IN_PROGRESS, words)
        words = (
            f"node {seen.next_check_by}, whose turn it is to check {counted(to_see, 'segment')}, has said nothing for "
            f"{_seconds(seen.stalled_ms)}: much takes long; else see its log"
        )
        return Why(WaitReason.UNKNOWN_SEGMENTS, words)
    return None


def _why_inventory_waits(seen: Observed) -> Why | None:
    if (away := _store_away(seen)) is not None:
        return away
    if seen.next_check_by is None and seen.blocks:
        return seen.blocks[0]
    if seen.stalled_ms < STALL_MS:
        return None
    words = (
        f"the list of what node {seen.node.node_id} held has not come into the object store for "
        f"{_seconds(seen.stalled_ms)}: the log of the node that writes it says why"
    )
    return Why(WaitReason.STORE_UNREACHABLE, words)


def _why_release_is_refused(seen: Observed, record: Retirement) -> Why | None:
    """Nothing needs the node as far as the plan sees, and the table finds that something does."""
    wait = record.wait
    is_its_turn_now = wait is not None and wait.reason is WaitReason.RELEASE_IN_PROGRESS
    if record.step is not RetireStep.SNAPSHOT or seen.stalled_ms < STALL_MS or is_its_turn_now:
        return None  # waiting for its turn is not a refusal
    words = (
        f"of {counted(seen.survey.segments, 'segment')} that list node {seen.node.node_id} some need it, by the check "
        f"at the release, for {_seconds(seen.stalled_ms)}: see the log of the service"
    )
    return Why(WaitReason.UNKNOWN_SEGMENTS, words)


def _why_mount_is_absent(seen: Observed) -> Why | None:
    if seen.stalled_ms < STALL_MS:
        return None
    words = (
        f"no mount of the data set of node {seen.node.node_id} could be started for {_seconds(seen.stalled_ms)}: the "
        "log of the meta service says why"
    )
    return Why(WaitReason.NO_MOUNT_HOLDER, words)


def _store_away(seen: Observed) -> Why | None:
    if not seen.store_away_ms:
        return None
    words = (
        f"the object store has not answered for {seen.store_away_ms // 1_000} s; still to be uploaded: "
        f"{counted(seen.survey.uploads.count, 'segment')}, {size_of(seen.survey.uploads.bytes)}"
    )
    return Why(WaitReason.STORE_UNREACHABLE, words)


def is_verified(sightings: Sequence[Sighting], interval_ms: int, segments: int, now_ms: int) -> bool:
    """Two in a row without anything unconfirmed, apart in time, of as many segments as there are, the last one of
    late: a store or a person that was waited for since may have changed what was seen. One that seems to be of a time
    to come may be as old: the clock was set back."""
    if len(sightings) < 2:
        return False
    first, second = sightings[-2], sightings[-1]
    is_all = min(first.segments, second.segments) >= segments
    is_all = is_all and abs(now_ms - second.at_ms) <= max(SIGHTING_LASTS_MS, 2 * interval_ms)
    return is_all and first.is_clean and second.is_clean and second.at_ms - first.at_ms >= interval_ms


def preflight(
    node: Node,
    nodes: Collection[Node],
    topics: Collection[Topic],
    survey: Survey,
    vitals: Mapping[int, Vitals],
    earlier: Collection[int] = (),
) -> tuple[Why, ...]:
    """What stands against going on without the node. `earlier`: who leaves before it, and counts as gone."""
    stay = [
        one
        for one in nodes
        if one.node_id != node.node_id and one.is_alive and not one.is_leaving and one.node_id not in earlier
    ]
    if not stay:
        return (Why(WaitReason.LAST_NODE, f"no other node is alive and stays: node {node.node_id} is the last one"),)
    found = [*_too_few(stay, topics), *_too_few_zones(node, stay, topics), *_no_room(stay, survey, vitals)]
    return tuple(found)


def _too_few(stay: Sequence[Node], topics: Collection[Topic]) -> list[Why]:
    users = [topic for topic in topics if not topic.is_internal]
    most = max(users, key=next_copies, default=None)
    if most is not None and next_copies(most) > len(stay):
        count = sum(next_copies(topic) > len(stay) for topic in users)
        words = (
            f"{counted(len(stay), 'node', verb=_STAYS)}, and {counted(count, 'topic', verb=_HAS)} more replicas, "
            f"such as {most.name!r} with {next_copies(most)}: add nodes first"
        )
        return [Why(WaitReason.REPLICATION_FACTOR, words)]
    for topic in users:
        # Only what the topic itself says: the replicas of all topics fit on the nodes that stay.
        least = least_in_sync(topic.settings, 1)
        if least > len(stay):
            words = (
                f"{counted(len(stay), 'node', verb=_STAYS)}, and topic {topic.name!r} asks for {MIN_IN_SYNC}={least}: "
                "add nodes first"
            )
            return [Why(WaitReason.REPLICATION_FACTOR, words)]
    return []


def _too_few_zones(node: Node, stay: Sequence[Node], topics: Collection[Topic]) -> list[Why]:
    after = {one.rack for one in stay if one.rack is not None}
    before = after | ({node.rack} - {None})
    widest = max((next_copies(topic) for topic in topics if not topic.is_internal), default=1)
    if len(after) < min(len(before), widest):
        words = (
            f"{counted(len(after), 'zone', verb=_STAYS)} of {len(before)}, and a topic has "
            f"{counted(widest, 'replica')}: add a node in zone {node.rack}"
        )
        return [Why(WaitReason.ZONE_SPREAD, words)]
    return []


def _no_room(stay: Sequence[Node], survey: Survey, vitals: Mapping[int, Vitals]) -> list[Why]:
    if not any(one.takes_new for one in stay):
        words = f"no room for new segments on the {counted(len(stay), 'node')} that would stay: make room there first"
        return [Why(WaitReason.INSUFFICIENT_CAPACITY, words)]
    if not survey.copies.bytes:
        return []
    unknown = [one.node_id for one in stay if one.node_id not in vitals]
    room = 0
    for one in stay:
        if one.takes_new and (reported := vitals.get(one.node_id)) is not None:
            free, headroom = reported.disk_free_bytes, reported.disk_total_bytes * HEADROOM_PERCENT // 100
            room += max(free - headroom, free * SLIGHT_PERCENT // 100)
    if room < survey.copies.bytes:
        unknown_words = f"; nodes {unknown} have not said how much they have" if unknown else ""
        words = (
            f"{size_of(survey.copies.bytes)} have no remote tier to read from and must be copied, and the nodes that "
            f"stay take {size_of(room)}: what they have free above {HEADROOM_PERCENT} % of their disks, or "
            f"{SLIGHT_PERCENT} % of "
            f"it{unknown_words}; make room, or add nodes"
        )
        return [Why(WaitReason.INSUFFICIENT_CAPACITY, words)]
    return []


def goes_before(one: Node, other: Node) -> bool:
    """Whether, of two nodes that leave, this one cannot count on the other one's staying any more."""
    if one.retirement is None or other.retirement is None:
        return one.retirement is not None
    return (one.retirement.begun_ms, one.node_id) < (other.retirement.begun_ms, other.node_id)


def is_volume(node: Node) -> bool:
    return node.retirement is not None and node.retirement.mode is RetireMode.VOLUME


def _seconds(ms: int) -> str:
    return f"{ms // 1_000:,} s"
