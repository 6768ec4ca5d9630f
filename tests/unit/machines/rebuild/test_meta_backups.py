"""Which snapshots of the metadata stay in the bucket, whose they are, and what may be freed once one tells of it."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.rebuild.meta_backups import FoundSnapshot, Witness, holder_of, lasting, stranger, to_remove
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Lock

SEGMENT = SegmentKey(UUID(int=1), 0, 0, 0)
OTHER = SegmentKey(UUID(int=1), 0, 1, 10)


def found(number: int, *, is_headed: bool = True) -> FoundSnapshot:
    return FoundSnapshot(number, 10 * number, UUID(int=number), is_headed, (f"{number}.head", f"{number}.piece"))


def lock_of(*numbers: int) -> Lock:
    names = [holder_of(UUID(int=number)) for number in numbers]
    return Lock("meta/snapshots", names[-1], numbers[-1], 0, tuple(names[:-1]))


def test_a_store_knows_the_snapshots_that_it_put() -> None:
    assert stranger([found(1), found(2)], lock_of(1, 2)) is None
    assert stranger([], None) is None


def test_a_snapshot_that_the_store_never_put_reports_that_it_is_older() -> None:
    assert stranger([found(1), found(2), found(3)], lock_of(1, 2)) == found(3)
    assert stranger([found(1)], None) == found(1)


def test_a_try_that_never_ended_tells_as_much() -> None:
    assert stranger([found(2, is_headed=False)], lock_of(1)) == found(2, is_headed=False)


def test_a_store_that_went_another_way_does_not_know_a_lower_number_either() -> None:
    assert stranger([found(2)], lock_of(1, 7)) == found(2)


def test_the_newest_few_stay_and_the_head_of_what_goes_goes_first() -> None:
    assert to_remove([found(number) for number in (1, 2, 3, 4, 5)]) == ("1.head", "1.piece", "2.head", "2.piece")


def test_a_try_that_never_ended_goes_once_a_later_one_is_whole() -> None:
    tries = [found(1, is_headed=False), found(2), found(3, is_headed=False)]
    assert to_remove(tries) == ("1.head", "1.piece")
    assert to_remove([found(1, is_headed=False)]) == ()


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_whatever_is_removed_whole_snapshots_are_left_and_what_remains_is_remembered(
    headed: set[int], others: set[int]
) -> None:
    every = [found(number, is_headed=number in headed) for number in headed | others]
    gone = {key.partition(".")[0] for key in to_remove(every)}
    left = [one for one in every if str(one.number) not in gone]
    assert {one.number for one in left if one.is_headed} == set(sorted(headed)[-3:])
    assert stranger(left, Lock("x", "nobody", 1, 0, lasting(left))) is None


def test_nothing_is_freed_before_a_snapshot_reports_it() -> None:
    witness = Witness(5)
    assert witness.not_backed_up([SEGMENT]) == SEGMENT, "what became complete before is not known"
    witness.backed_up(4)
    assert witness.not_backed_up([SEGMENT]) == SEGMENT
    witness.backed_up(5)
    assert witness.not_backed_up([SEGMENT]) is None
    witness.completing(SEGMENT)
    witness.backed_up(8)
    assert witness.not_backed_up([OTHER, SEGMENT]) == SEGMENT, "it may have become so after the snapshot was taken"
    witness.completed(SEGMENT, 9)
    witness.backed_up(8)
    assert witness.not_backed_up([SEGMENT]) == SEGMENT
    witness.backed_up(9)
    assert witness.not_backed_up([OTHER, SEGMENT]) is None
