"""One verdict on a segment without a local file, by a table of facts."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.restart.missing_copy import Standing, judge_missing
from stratalog.machines.restart.shard_restart import deleted_files
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS
from stratalog.model.segment import RemoteCopy, RemoteState, SealRecord, Segment, SegmentState

SEAL = SealRecord(0, 0, 100, 1, 1, 5_000, b"d", NO_PRODUCERS, (1,), 0)
HERE = Segment(
    SegmentKey(UUID(int=3), 0, 0, 0), SegmentState.SEALED, None, (1,), (1,), 0, 0, 100, SEAL, (1,),
    RemoteCopy(RemoteState.PARTIAL, 40),
)  # fmt: skip
COMPLETE = replace(HERE, remote=RemoteCopy(RemoteState.COMPLETE, 100, (), "m", b"d"))
ENDED = replace(HERE, state=SegmentState.SEALING, leader=1, seal=None, local_nodes=())


@pytest.mark.fault("sealed-segment-file-gone")
@pytest.mark.parametrize(
    ("segment", "has_store", "standing", "words"),
    [
        (COMPLETE, True, Standing.STORED, "the object store has the whole segment"),
        (replace(COMPLETE, local_nodes=()), True, Standing.FREED, "was freed"),
        (COMPLETE, False, Standing.OUT_OF_REACH, "started without one"),
        (replace(COMPLETE, local_nodes=()), False, Standing.OUT_OF_REACH, "started without one"),
        (HERE, True, Standing.LOST, "[40, 100) are lost here and not in the object store"),
        (replace(HERE, remote=RemoteCopy()), True, Standing.LOST, "[0, 100) are lost here"),
        (replace(HERE, local_nodes=(1, 2)), True, Standing.LOST, "lost here"),
        (replace(HERE, local_nodes=(2,)), True, Standing.ELSEWHERE, "(2,)"),
        (replace(HERE, local_nodes=()), True, Standing.LOST, "lost here"),
        (ENDED, True, Standing.LOST, "[40, 100) are lost here"),
        (replace(HERE, end_offset=0), True, Standing.FREED, "empty"),
    ],
)
def test_a_missing_copy_has_one_verdict(segment: Segment, has_store: bool, standing: Standing, words: str) -> None:
    verdict = judge_missing(segment, 1, has_store=has_store)
    assert verdict.standing is standing
    assert words in verdict.what
    assert verdict.is_error == (standing in (Standing.LOST, Standing.OUT_OF_REACH))


def test_a_lost_copy_that_others_hold_names_them() -> None:
    verdict = judge_missing(replace(HERE, local_nodes=(1, 2)), 1, has_store=True)
    assert "(2,)" in verdict.next_step


@pytest.mark.fault("segment-deleted-node-dead")
def test_files_before_all_that_is_listed_are_of_deleted_segments_where_the_log_start_says_so() -> None:
    """F70: they were deleted and forgotten while their node was away. Metadata put back from a copy say less."""

    def key(epoch: int, base_offset: int) -> SegmentKey:
        return SegmentKey(UUID(int=3), 0, epoch, base_offset)

    listed = [replace(HERE, key=key(2, 100)), replace(HERE, key=key(3, 200))]
    files = [key(0, 0), key(1, 50), key(2, 100), key(3, 200), key(4, 300)]
    assert deleted_files(files, listed, log_start_offset=100) == files[:2]
    assert deleted_files(files, listed, log_start_offset=150) == files[:2]
    assert deleted_files(files, listed, log_start_offset=99) == [], "something between is not told of"
    assert deleted_files(files, [], log_start_offset=100) == []
    assert deleted_files([key(1, 100)], listed, log_start_offset=100) == [], "of what lies there it says nothing"
