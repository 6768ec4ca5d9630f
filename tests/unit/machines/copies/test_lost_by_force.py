"""Whether what lay beside a segment's copies is gone by a person's word. Unknown is not gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.copies.leaving import are_producers_lost, is_lost_by_force, is_lost_for_good
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import RemoteCopy, RemoteState, SegmentState
from unit.machines.tiering.test_mounted_uploads import SEALED

ALONE = replace(SEALED, local_nodes=(1,))
OFFLOAD, VOLUME = RetireMode.OFFLOAD, RetireMode.VOLUME


@pytest.mark.fault("leader-restarts-shard-continues")
@pytest.mark.parametrize(
    ("mode", "step", "is_forced", "is_alive", "is_read", "is_lost"),
    [
        (OFFLOAD, RetireStep.DONE, True, False, False, True),
        (OFFLOAD, RetireStep.OFFLOAD, True, False, False, True),
        (OFFLOAD, RetireStep.OFFLOAD, True, True, False, False),
        (OFFLOAD, RetireStep.OFFLOAD, False, False, False, False),
        (VOLUME, RetireStep.MOUNT, False, False, False, False),
        (VOLUME, RetireStep.DONE, False, False, False, False),
        (VOLUME, RetireStep.DONE, False, False, True, False),
        (VOLUME, RetireStep.DONE, True, False, True, False),
        (VOLUME, RetireStep.DONE, True, False, False, False),
    ],
)
def test_a_directory_that_stays_is_not_lost_while_no_node_reads_it(
    mode: RetireMode, step: RetireStep, is_forced: bool, is_alive: bool, is_read: bool, is_lost: bool
) -> None:
    node = Node(
        1, "disk", "host", 9, is_alive=is_alive, retirement=Retirement("disk", mode, step, 0, 0, is_forced=is_forced)
    )
    assert is_lost_by_force(ALONE, {1: node}.get, lambda _: is_read) is is_lost
    whole = replace(ALONE, remote=RemoteCopy(RemoteState.COMPLETE))
    assert not is_lost_by_force(whole, {1: node}.get, lambda _: is_read)
    assert not is_lost_by_force(replace(SEALED, local_nodes=(1, 2)), {1: node}.get, lambda _: is_read), "ask the other"


@pytest.mark.parametrize("is_read", [False, True])
def test_a_directory_that_was_given_up_as_well_is_lost_for_good(is_read: bool) -> None:
    record = Retirement("disk", VOLUME, RetireStep.DONE, 0, 0, is_forced=True, is_volume_lost=True)
    node = Node(1, "disk", "host", 9, is_alive=False, retirement=record)
    assert is_lost_by_force(ALONE, {1: node}.get, lambda _: is_read) is not is_read
    assert is_lost_for_good(ALONE, {1: node}.get, lambda _: is_read) is not is_read


@pytest.mark.parametrize("step", [RetireStep.OFFLOAD, RetireStep.SNAPSHOT, RetireStep.RELEASE, RetireStep.DONE])
def test_what_a_node_that_returns_may_still_have_is_not_lost_for_good(step: RetireStep) -> None:
    record = Retirement("disk", OFFLOAD, step, 0, 0, is_forced=True)
    node = Node(1, "disk", "host", 9, is_alive=False, retirement=record)
    assert is_lost_by_force(ALONE, {1: node}.get, lambda _: False)
    assert is_lost_for_good(ALONE, {1: node}.get, lambda _: False) is step.is_released
    assert not is_lost_for_good(ALONE, {1: node}.get, lambda _: True)


@pytest.mark.parametrize(
    ("is_alive", "step", "is_forced", "may_have_it"),
    [
        (False, None, False, True),
        (False, RetireStep.OFFLOAD, False, True),
        (False, RetireStep.OFFLOAD, True, True),
        (False, RetireStep.DONE, False, False),
        (True, None, False, False),
    ],
)
def test_a_replica_that_went_before_it_reported_its_copy_may_have_what_was_given_up(
    is_alive: bool, step: RetireStep | None, is_forced: bool, may_have_it: bool
) -> None:
    gone = Node(1, "disk", "host", 9, is_alive=False, retirement=_record(RetireStep.DONE, is_forced=True))
    record = None if step is None else _record(step, is_forced=is_forced)
    other = Node(2, "disk", "host", 9, is_alive=is_alive, retirement=record)
    segment = replace(ALONE, replicas=(1, 2))
    assert is_lost_for_good(segment, {1: gone, 2: other}.get, lambda _: False) is not may_have_it
    assert is_lost_for_good(replace(ALONE, replicas=(1,)), {1: gone, 2: other}.get, lambda _: False)


@pytest.mark.fault("node-released")
@pytest.mark.parametrize(
    ("step", "replicas", "is_sealed", "other", "is_lost"),
    [
        (RetireStep.DONE, (2,), True, "alive", True),
        (RetireStep.SEAL, (2,), False, "alive", False),
        (RetireStep.SEAL, (1, 2), True, "alive", False),
        (RetireStep.SEAL, (1, 2), False, "alive", True),
        (RetireStep.SEAL, (1, 2), False, "away", False),
        (RetireStep.SEAL, (1, 2), False, "forced", True),
        (RetireStep.DONE, (2,), False, "away", False),
        (RetireStep.DONE, (2,), False, "forced", True),
        (RetireStep.DONE, (3,), False, "forced", False),
    ],
)
def test_producers_are_forgotten_once_no_node_can_bring_them_back_or_nothing_else_releases_nodes_that_might(
    step: RetireStep, replicas: tuple[int, ...], is_sealed: bool, other: str, is_lost: bool
) -> None:
    """What is written behind them is sealed with the table alone, and who leaves waits for that seal."""
    gone = Node(1, "disk", "host", 9, is_alive=False, retirement=_record(step, is_forced=True))
    record = _record(RetireStep.SEAL, is_forced=True) if other == "forced" else None
    second = Node(2, "disk", "host", 9, is_alive=other == "alive", retirement=record)
    segment, behind = replace(ALONE, replicas=(1, 2)), replace(SEALED, replicas=replicas)
    if not is_sealed:
        behind = replace(behind, state=SegmentState.SEALING, seal=None, local_nodes=())
    nodes = {1: gone, 2: second}
    assert are_producers_lost(segment, [behind], nodes.get, lambda _: False) is is_lost


def _record(step: RetireStep, *, is_forced: bool) -> Retirement:
    return Retirement("disk", OFFLOAD, step, 0, 0, is_forced=is_forced)


@pytest.mark.parametrize(
    ("is_alive", "step", "is_forced", "is_lost"),
    [
        (False, RetireStep.SEAL, True, True),
        (True, RetireStep.SEAL, True, False),
        (False, RetireStep.SEAL, False, False),
        (False, RetireStep.DONE, True, False),
    ],
)
def test_producers_are_forgotten_where_two_nodes_are_each_kept_by_what_waits_for_the_other(
    is_alive: bool, step: RetireStep, is_forced: bool, is_lost: bool
) -> None:
    """The first one is kept by a segment of another shard, which waits for the second, which this shard keeps."""
    first = Node(1, "disk", "host", 9, is_alive=False, retirement=_record(RetireStep.SEAL, is_forced=True))
    second = Node(2, "disk", "host", 9, is_alive=is_alive, retirement=_record(step, is_forced=is_forced))
    third = Node(3, "disk", "host", 9)
    nodes = {1: first, 2: second, 3: third}
    segment = replace(ALONE, replicas=(1,))
    behind = replace(SEALED, replicas=(2, 3), state=SegmentState.SEALING, seal=None, local_nodes=())
    assert are_producers_lost(segment, [behind], nodes.get, lambda _: False) is is_lost
