"""A segment without a leader, with three replicas in every state: it is ended by force when no other node has to
answer, and as long as one has, that node is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations, combinations_with_replacement, product
from uuid import UUID

import pytest

from stratalog.machines.copies.leaving import Presence, is_given_up, is_waited_for_in_vain
from stratalog.machines.copies.recovery_rule import Waiting, decide
from stratalog.machines.plans.shard_troubles import TroubleKind, troubles_of
from stratalog.machines.reading.bucket_reads import BucketReads
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.metadata import Node, Shard
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import Doubt, GapReason, GivenUp, Handover, Segment, SegmentState, Vote
from stratalog.model.topic import Topic

GIVEN_UP = Retirement("disk", RetireMode.OFFLOAD, RetireStep.SEAL, 1, 1, is_forced=True)
KEY = SegmentKey(UUID(int=1), 0, 0, 0)


@dataclass(frozen=True)
class Replica:
    is_alive: bool
    is_given_up: bool = False
    has_promised: bool = False
    doubt: Doubt | None = None


SILENT = Replica(is_alive=True)
DOUBTS = (None, Doubt(0, is_lost=False), Doubt(0, is_lost=True))
REPLICAS = (
    SILENT,
    *(Replica(is_alive=True, has_promised=not (doubt and doubt.is_lost), doubt=doubt) for doubt in DOUBTS),
    Replica(is_alive=True, has_promised=True, doubt=Doubt(0, is_lost=False, is_faulty=True)),
    *(Replica(is_alive=False, doubt=doubt) for doubt in DOUBTS),
    *(Replica(is_alive=False, is_given_up=True, doubt=doubt) for doubt in DOUBTS),
)
ISRS = list(chain.from_iterable(combinations((1, 2, 3), count) for count in (1, 2, 3)))
ENDS: list[tuple[int | None, tuple[GivenUp, ...]]] = [
    (None, ()),
    (10, ()),
    (10, (GivenUp(0, 0, GapReason.UNCLEAN),)),
]
"""Not known; known, with and without a person's word."""


@dataclass(frozen=True)
class Case:
    segment: Segment
    nodes: dict[int, Node]
    owing: frozenset[int]
    """The nodes that have to answer, or be given up."""
    new_disks: frozenset[int]
    """Of living nodes."""

    @property
    def presence(self) -> Presence:
        nodes = self.nodes
        return Presence(
            lambda one: nodes[one].is_alive,
            lambda one: is_given_up(nodes[one].retirement, is_alive=nodes[one].is_alive),
            lambda one: nodes[one].is_leaving and not nodes[one].is_alive,
        )

    def named(self, topic: Topic) -> set[int]:
        shard = Shard(ShardKey(KEY.topic_id, 0), 0, (self.segment,))
        kinds = (TroubleKind.NO_LEADER, TroubleKind.NO_SOURCE)
        found = troubles_of(topic, shard, self.nodes, 0, BucketReads(self.nodes.values()))
        return {node for one in found if one.kind in kinds for node in one.nodes}


def cases() -> Iterator[Case]:
    for held, isr, (end, gaps) in product(combinations_with_replacement(REPLICAS, 3), ISRS, ENDS):
        by_id = dict(enumerate(held, 1))
        nodes = {
            node_id: Node(
                node_id, "disk", "host", 1, is_alive=one.is_alive, retirement=GIVEN_UP if one.is_given_up else None
            )
            for node_id, one in by_id.items()
        }
        handover = Handover(
            votes=tuple(Vote(node_id, 1, 10, 0, not one.doubt) for node_id, one in by_id.items() if one.has_promised),
            doubts=tuple(one.doubt._replace(node_id=node_id) for node_id, one in by_id.items() if one.doubt),
            given_up=gaps,
        )
        state = SegmentState.ACTIVE if end is None else SegmentState.SEALING
        yield Case(
            Segment(KEY, state, None, (1, 2, 3), isr, 0, 0, end_offset=end, fence=1, handover=handover),
            nodes,
            frozenset(node_id for node_id, one in by_id.items() if not one.is_given_up and not one.has_promised),
            frozenset(node_id for node_id, one in by_id.items() if one.is_alive and one.doubt and one.doubt.is_lost),
        )


@pytest.mark.parametrize("by_quorum", [False, True])
def test_a_node_that_keeps_a_segment_open_is_named_and_it_ends_when_no_node_does(by_quorum: bool) -> None:
    topic = Topic("orders", KEY.topic_id, 1, 3, {"acks.policy": "quorum"} if by_quorum else {}, 1)
    waits = 0
    for case in cases():
        presence = case.presence
        if not isinstance(decide(case.segment, by_quorum=by_quorum, is_alive=presence.is_alive), Waiting):
            continue
        waits += 1
        is_in_vain = is_waited_for_in_vain(case.segment, by_quorum, presence)
        if is_in_vain:
            assert case.owing <= case.new_disks, case
        else:
            assert case.owing & case.named(topic), case
    assert waits > 1_000
