"""Decides from the promises of its replicas where a fenced segment ends, or names the replicas that the decision waits
for.

Pure, over the segment's record alone, so that the cluster UI names the same nodes as the service waits for.

* ISR policy: each member holds all acknowledged data, so one whole vote is enough. Living members are waited for
anyway, so that data that only some of them have (acks=1) are kept. Once a member has promised, the old leader's HW
cannot pass that member's end any more: it would need the member's fetches, or another ISR than the service has. A copy
that ends below what others know to be acknowledged is not whole, whatever its node says.
* Quorum policy: a majority of the replicas holds all acknowledged data, and every two majorities share a replica. * If
the end is certain, a replica whose copy is faulty is neither waited for nor believed: the longest copy becomes the
source of the others. * Without enough whole votes all members have to answer, also those that left the ISR because
their tail is doubted: any of them may have kept what the others lost. So may each other replica: a living one is waited
for, and the longest copy of all counts. If damage is known to hide batches that no other replica has shown, dead
replicas are waited for, too, because their copies were never asked for them. What a lost disk held is unknown: it is
waited for until a person gives it up.
* A segment with a known end has a source that had all of it. The leader of the next segment serves all of that as
committed, so a source that dies before other replicas have copied the rest is waited for.

Source: docs/replication.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.model.segment import Segment, Vote

ACKS_POLICY: Final = "acks.policy"
QUORUM: Final = "quorum"
MIN_IN_SYNC: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Decided:
    best: Vote
    """The voice with the highest end."""
    is_certain: bool
    """Nothing that was acknowledged can lie above it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    nodes: tuple[int, ...]
    """Each of them has to promise before the end can be known."""
    best: Vote | None
    """The vote with the highest end, of all replicas that answered: the best end if no other replica ever answers."""
    is_hopeless: bool
    """Every replica that is alive has answered: it waits for nodes that are not."""


def is_quorum(settings: Mapping[str, str]) -> bool:
    """Whether a topic acknowledges by a majority of the replicas."""
    return settings.get(ACKS_POLICY) == QUORUM


def least_in_sync(settings: Mapping[str, str], default: int) -> int:
    """How many in-sync replicas a topic asks for with acks=all. `default`, the processes' `min.insync.replicas`, holds
    where the topic says nothing, or nothing that is a number: whoever keeps settings takes text, and one topic's must
    not hide the others."""
    try:
        return int(settings.get(MIN_IN_SYNC, default))
    except ValueError:
        return default


def majority(segment: Segment) -> int:
    return len(segment.replicas) // 2 + 1


def has_a_say(segment: Segment, node_id: int, *, by_quorum: bool) -> bool:
    """Whether this replica may be the only one that has something which was acknowledged. Others are heard, too, and
    are waited for only while they are alive."""
    is_doubted = any(doubt.node_id == node_id for doubt in segment.handed.doubts)
    return node_id in segment.replicas and (by_quorum or node_id in segment.isr or is_doubted)


def decide(segment: Segment, *, by_quorum: bool, is_alive: Callable[[int], bool]) -> Decided | Waiting:
    """Votes of nodes that are not alive do not count until they are heard of again: they could not be asked for
    data."""
    doubted = {doubt.node_id for doubt in segment.handed.doubts}
    faulty = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_faulty}
    lost = {doubt.node_id for doubt in segment.handed.doubts if doubt.is_lost}
    voters = [node for node in segment.replicas if has_a_say(segment, node, by_quorum=by_quorum)]
    heard = [vote for vote in segment.handed.votes if vote.node_id not in lost and is_alive(vote.node_id)]
    voices = [vote for vote in heard if vote.node_id in voters]
    known = 0 if by_quorum else _known_to_be_acknowledged(segment, heard)
    whole = [vote for vote in voices if vote.is_tail_whole and vote.node_id not in doubted and vote.end_offset >= known]
    answered = {vote.node_id for vote in heard}
    silent = tuple(node for node in voters if node not in answered)
    living = tuple(node for node in segment.replicas if node not in answered | lost and is_alive(node))
    pending = tuple(node for node in living if node in voters and node not in faulty)
    source = owed_by_source(segment)
    if source is not None and source not in lost and not is_alive(source):
        return Waiting((source,), _longest(heard) if heard else None, not living)
    is_certain = len(whole) >= majority(segment) if by_quorum else bool(whole) and not pending
    if is_certain:
        return Decided(_longest([vote for vote in voices if vote.node_id not in faulty]), is_certain)
    absent = tuple(node for node in segment.replicas if node not in answered | lost)
    others = absent if _is_damage_known(segment, heard) else living
    if voices and not silent and not others:
        return Decided(_longest(heard, faulty), is_certain)
    awaited = pending if whole and not by_quorum else silent or others
    return Waiting(awaited, _longest(heard) if heard else None, not living)


def owed_by_source(segment: Segment) -> int | None:
    """The source of a segment that ended, if it had all of it, as far as is known."""
    end_offset, handed = segment.end_offset, segment.handed
    if end_offset is None or has_gap_at_end(segment) or is_source_short(segment):
        return None
    return handed.source


def has_gap_at_end(segment: Segment) -> bool:
    """Whether data up to its known end were given up: no replica had them."""
    end_offset = segment.end_offset
    return end_offset is not None and any(
        gap.base_offset < end_offset <= gap.end_offset for gap in segment.handed.given_up
    )


def is_source_short(segment: Segment) -> bool:
    """Whether the source said in its present life that it has less than the whole segment."""
    end_offset, handed = segment.end_offset, segment.handed
    return end_offset is not None and any(
        vote.node_id == handed.source and vote.end_offset < end_offset for vote in handed.votes
    )


def _known_to_be_acknowledged(segment: Segment, heard: list[Vote]) -> int:
    """The offset that each member of the ISR has reached if it has lost nothing. Of a segment that has ended already
    the end counts as committed, and its leader alone may have held it."""
    if segment.end_offset is not None:
        return 0
    return max([segment.remote.commit_offset, *(vote.high_watermark for vote in heard)])


def _is_damage_known(segment: Segment, heard: list[Vote]) -> bool:
    """Whether a replica saw batches behind damage, up to above the end of every copy that was heard of. What a power
    cut left may look like that, and says nothing: who restarted after one is in doubt, and not faulty."""
    unclean = {doubt.node_id for doubt in segment.handed.doubts if not doubt.is_faulty}
    end_offset = max((vote.end_offset for vote in heard), default=0)
    return any(vote.seen_offset > end_offset for vote in heard if vote.node_id not in unclean)


def _longest(votes: list[Vote], faulty: Collection[int] = ()) -> Vote:
    """Of those that go equally far one that can prove its copy."""
    return max(votes, key=lambda vote: (vote.end_offset, vote.node_id not in faulty, vote.is_tail_whole, -vote.node_id))
