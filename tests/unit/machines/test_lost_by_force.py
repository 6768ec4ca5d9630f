"""Whether what lay beside a segment's copies is gone by a person's word. Unknown is not gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.machines.leaving import is_lost_by_force, is_lost_for_good
from stratalog.model.metadata import Node
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog.model.segment import RemoteCopy, RemoteState
from unit.machines.test_mounted_uploads import SEALED

ALONE = replace(SEALED, local_nodes=(1,))
OFFLOAD, VOLUME = RetireMode.OFFLOAD, RetireMode.VOLUME


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
def test_a_directory_that_stays_is_not_lost_while_nobody_reads_it(
    mode: RetireMode, step: RetireStep, is_forced: bool, is_alive: bool, is_read: bool, is_lost: bool
) -> None:
    node = Node(
        1, "disk", "host", 9, is_alive=is_alive, retirement=Retirement("disk", mode, step, 0, 0, is_forced=is_forced)
    )
    assert is_lost_by_force(ALONE, {1: node}.get, lambda _: is_read) is is_lost
    whole = replace(ALONE, remote=RemoteCopy(RemoteState.COMPLETE))
    assert not is_lost_by_force(whole, {1: node}.get, lambda _: is_read)
    assert not is_lost_by_force(replace(SEALED, local_nodes=(1, 2)), {1: node}.get, lambda _: is_read), "ask the other"


@pytest.mark.parametrize("step", [RetireStep.OFFLOAD, RetireStep.SNAPSHOT, RetireStep.RELEASE, RetireStep.DONE])
def test_what_a_node_that_returns_may_still_have_is_not_lost_for_good(step: RetireStep) -> None:
    record = Retirement("disk", OFFLOAD, step, 0, 0, is_forced=True)
    node = Node(1, "disk", "host", 9, is_alive=False, retirement=record)
    assert is_lost_by_force(ALONE, {1: node}.get, lambda _: False)
    assert is_lost_for_good(ALONE, {1: node}.get, lambda _: False) is step.is_released
    assert not is_lost_for_good(ALONE, {1: node}.get, lambda _: True)
