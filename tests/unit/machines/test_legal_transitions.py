"""The states of followers, leaders, shards, rolls and groups change only as their tables say: in all stories, and for a
follower in random walks, which reach each transition of its table."""

from __future__ import annotations

import random
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from stratalog.machines.following import follower_events as told
from stratalog.machines.following.follower_events import FOLLOWER_TRANSITIONS, FollowerLife
from stratalog.machines.following.segment_follower import SegmentFollower
from stratalog.machines.groups.group_book import GROUP_TRANSITIONS, GroupBook
from stratalog.machines.leading.leader_events import LEADER_TRANSITIONS, LeaderLife
from stratalog.machines.leading.roll_order import ROLL_TRANSITIONS, RollOrder, RollStep
from stratalog.machines.leading.segment_leader import SegmentLeader
from stratalog.machines.leading.shard_chain import ShardChain
from stratalog.machines.leading.shard_life import SHARD_TRANSITIONS, Life
from stratalog.model.groups.group import GroupState
from support.chain_story import ChainStory
from support.follower_story import KEY, NODE_ID, FollowerStory
from support.group_story import GroupStory
from support.leader_story import LeaderStory
from support.legal_transitions import checked_transitions
from support.source_tree import REPOSITORY

STORIES = Path(__file__).parent
OF_THE_CONSUMER_PROTOCOL = {GroupState.ASSIGNING, GroupState.RECONCILING}
"""A `ConsumerGroup` calculates its state from its members."""
MACHINES: list[tuple[type, str, Mapping[Any, frozenset[Any]], set[Any], str, type[Any]]] = [
    (SegmentFollower, "life", FOLLOWER_TRANSITIONS, set(FollowerLife), "follower_stories", FollowerStory),
    (SegmentLeader, "life", LEADER_TRANSITIONS, set(LeaderLife), "leader_stories", LeaderStory),
    (ShardChain, "life", SHARD_TRANSITIONS, set(Life), "chain_stories", ChainStory),
    (RollOrder, "step", ROLL_TRANSITIONS, set(RollStep), "chain_stories", ChainStory),
    (GroupBook, "state", GROUP_TRANSITIONS, set(GroupState) - OF_THE_CONSUMER_PROTOCOL, "group_stories", GroupStory),
]


@pytest.mark.parametrize(
    ("machine", "field", "table", "states", "folder", "player"), MACHINES, ids=[one[0].__name__ for one in MACHINES]
)
def test_each_story_keeps_to_the_table(
    machine: type,
    field: str,
    table: Mapping[Any, frozenset[Any]],
    states: set[Any],
    folder: str,
    player: type[Any],
) -> None:
    assert set(table) == states, "each state is in the table"
    seen: set[tuple[Enum, Enum]] = set()
    with checked_transitions(machine, table, seen, field):
        for story in sorted((STORIES / folder).glob("*.txt")):
            told = story.read_text()
            assert player().play(told) == told, story.name
    assert seen, "the stories change no state"


@pytest.mark.parametrize("table", [one[2] for one in MACHINES], ids=[one[0].__name__ for one in MACHINES])
def test_the_page_has_the_table(table: Mapping[Any, frozenset[Any]]) -> None:
    page = (REPOSITORY / "docs" / "replication.md").read_text().splitlines()
    rows = [f"| {state.name} | {', '.join(one.name for one in table if one in table[state])} |" for state in table]
    assert not [row for row in rows if row.rstrip(" |") not in {line.rstrip(" |") for line in page}]


def test_a_transition_that_is_not_in_the_table_is_seen() -> None:
    seen: set[tuple[Enum, Enum]] = set()
    never = dict.fromkeys(FollowerLife, frozenset[FollowerLife]())
    story = (STORIES / "follower_stories" / "a_deleted_segment_is_dropped.txt").read_text()
    with checked_transitions(SegmentFollower, never, seen), pytest.raises(AssertionError, match="becomes LEFT"):
        FollowerStory().play(story)


NAMES = told.SegmentNamed
RECORDS = (
    NAMES(1, (1, 2, 3), (1, 2, 3)),
    NAMES(1, (1, 2, 3), (1, 2, 3), end_offset=110),
    NAMES(None, (1, 2, 3), (1, 2, 3), fence=4),
    NAMES(None, (1, 2, 3), (1, 2, 3), fence=4, end_offset=110, source=3),
    NAMES(None, (1, 2, 3), (1, 2, 3), fence=4, end_offset=100, source=3),
    NAMES(None, (1, 2, 3), (1, 2, 3), end_offset=110, is_sealed=True, proven=(2, 3)),
    NAMES(None, (1, 2, 3), (1, 2, 3), end_offset=110, is_sealed=True, proven=(3,)),
    NAMES(1, (1, 3), (1, 3)),
)
EVENTS: tuple[told.FollowerEvent, ...] = (
    *RECORDS,
    *(told.RangeArrived(node, told.CheckedRange(KEY.epoch, 100, 110, 100, b""), 100) for node in (1, 3)),
    told.FlushLost("the disk lost a page"),
    told.CopyDamaged("a batch has another CRC"),
    told.CopyProven(100, b"digest"),
    told.PromiseWritten(4),
    told.ReportAccepted(),
    told.SegmentGone(),
)


def test_a_follower_reaches_each_transition_of_its_table_and_no_other() -> None:
    chance = random.Random(1)
    seen: set[tuple[Enum, Enum]] = set()
    with checked_transitions(SegmentFollower, FOLLOWER_TRANSITIONS, seen):
        for _ in range(4_000):
            follower = SegmentFollower(KEY, NODE_ID, end_offset=chance.choice((100, 110)))
            for event in chance.choices(EVENTS, k=12):
                effects = follower.step(event, 0)
                if effects and isinstance(effects[-1], told.AppendRange):
                    follower.step(told.RangeAppended(), 0)
                elif effects and isinstance(effects[-1], told.CutTail):
                    follower.step(told.TailCut(), 0)
    legal = {(before, after) for before, lives in FOLLOWER_TRANSITIONS.items() for after in lives}
    assert seen == legal, f"never reached: {sorted(f'{one.name} to {other.name}' for one, other in legal - seen)}"
