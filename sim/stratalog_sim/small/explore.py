"""Every history of a small world (`small_world.py`): instead of drawing what happens next, each choice is tried,
breadth first. A state that was seen before, whichever way it was reached, is not looked at again.

A state is its pickle: machines and all else that changes by value, records that never change by a number that equal
ones share. So equal states are equal bytes, and going back to one costs no copy of what does not change.
Cost: about 0.2 ms a step, and 20 bytes a state beside those that wait to be looked at.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import UUID

from stratalog.machines.following import follower_events as told
from stratalog.machines.following.follower_events import FollowerLife, SegmentNamed
from stratalog.machines.leading.leader_events import LeaderLife, ProposeIsr, RollPolicy, SegmentRecord
from stratalog.machines.table.records import NodeEntry, TableHeader
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import Segment
from stratalog_sim.small.small_world import Budget, Choice, SmallWorld, settled

_SHARED = (
    Segment,
    SegmentKey,
    ShardKey,
    SegmentNamed,
    SegmentRecord,
    NodeEntry,
    TableHeader,
    RollPolicy,
    ProposeIsr,
    UUID,
    FollowerLife,
    LeaderLife,
    told.Ask,
    told.RangeArrived,
    told.CopyProven,
    told.SubmitPromise,
    told.SubmitReport,
)
_kept: list[Any] = []
_numbers: dict[Any, int] = {}
_places: dict[int, int] = {}
"""Of those kept, by where they lie in memory: most of what a state names came out of another one."""


def _kept_one(number: int) -> Any:
    return _kept[number]


def _reduce(value: Any) -> tuple[Any, tuple[int]]:
    number = _places.get(id(value))
    if number is None:
        number = _numbers.get(value)
    if number is None:
        number = _numbers[value] = _places[id(value)] = len(_kept)
        _kept.append(value)
    return _kept_one, (number,)


_TABLE = dict.fromkeys(_SHARED, _reduce)


def dump(world: SmallWorld) -> bytes:
    """Its state; equal for equal states within this process."""
    into = io.BytesIO()
    pickler = pickle.Pickler(into, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True  # by value: whether two places share one object makes no difference to the state
    pickler.dispatch_table = _TABLE
    pickler.dump(settled(world))
    return into.getvalue()


def load(state: bytes) -> SmallWorld:
    world: SmallWorld = pickle.loads(state)
    return world


def _only(**times: int) -> Budget:
    """Nothing else happens."""
    return Budget(**(dict.fromkeys(Budget.__slots__, 0) | times))


SMALL_WORLDS = {
    "two rolls, two nodes": (2, _only(writes=2, rolls=2)),
    "one batch, one roll, one power cut, two nodes": (2, _only(writes=1, rolls=1, crashes=1)),
    "two batches, one roll, three nodes": (3, _only(writes=2, rolls=1)),
    "two rolls, three nodes": (3, _only(writes=2, rolls=2)),
    "one batch, one power cut, three nodes": (3, _only(writes=1, crashes=1)),
    "one batch, one roll, one power cut, three nodes": (3, _only(writes=1, rolls=1, crashes=1)),
    "two rolls, one power cut, two nodes": (2, _only(writes=2, rolls=2, crashes=1)),
    "one batch, one roll, one lease, one power cut, two nodes": (
        2,
        _only(writes=1, rolls=1, deaths=1, crashes=1, delays=1),
    ),
    "everything, two nodes": (2, Budget(rolls=2)),
    "everything, three nodes": (3, Budget(rolls=2)),
}
"""Those that `make explore` looks at: how many nodes, and what may happen how often. docs/simulator.md says how many
states each of them has."""


@dataclass(frozen=True, slots=True)
class Explored:
    states: int
    steps: int
    is_whole: bool
    """Every history within the budget was looked at."""


def explore(nodes: int, budget: Budget, most_states: int, *, is_quorum: bool = False) -> Explored:
    """Raises Broken or AssertionError, its notes say which choices lead there."""
    first = dump(SmallWorld(nodes, budget, is_quorum=is_quorum))
    seen = {_mark(first)}
    line: deque[tuple[bytes, tuple[Any, ...]]] = deque([(first, ())])
    steps = 0
    while line and len(seen) < most_states:
        state, path = line.popleft()
        world = load(state)
        choices = world.choices()
        for number, choice in enumerate(choices, 1):
            steps += 1
            try:
                world.do(choice)
            except AssertionError as failure:
                taken = [*_way(path), choice]
                failure.add_note(f"after {len(taken) - 1} steps: {', '.join(f'{w} {n}/e{e}' for w, n, e in taken)}")
                raise
            reached = dump(world)
            mark = _mark(reached)
            if mark not in seen:
                seen.add(mark)
                line.append((reached, (path, choice)))
            if number < len(choices):
                world = load(state)
    return Explored(len(seen), steps, not line)


def _mark(state: bytes) -> bytes:
    return blake2b(state, digest_size=12).digest()


def _way(path: tuple[Any, ...]) -> list[Choice]:
    """The choices to there, oldest first; each step knows the one before it."""
    found: list[Choice] = []
    while path:
        path, choice = path
        found.append(choice)
    return found[::-1]
