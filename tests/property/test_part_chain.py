"""Whatever lies in the bucket of a segment (attempts that were not committed, of tails that were lost, merged, swept),
the chain that is chosen holds all that was committed, as it was committed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.formats.segments.digest import EMPTY_DIGEST, extend_digest
from stratalog.machines.tiering.part_chain import FoundPart, choose_chain
from stratalog.model.segment import RemotePart

BASE = 100

steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("upload"), st.integers(1, 9), st.sampled_from(["lost", "landed", "committed"])),
    st.tuples(st.just("upload"), st.integers(1, 9), st.sampled_from(["landed", "committed"])),
    st.tuples(st.just("merge"), st.integers(0, 40), st.sampled_from(["landed", "committed"])),
    st.tuples(st.just("new life"), st.just(0), st.just(0)),
    st.tuples(st.just("power cut"), st.integers(0, 8), st.just(0)),
    st.tuples(st.just("sweep"), st.integers(0, 3), st.just(0)),
)


@dataclass
class Bucket:
    """One segment through many lives of its node, in a world where lost offsets are even given again in its epoch."""

    log: list[bytes] = field(default_factory=list)
    committed: list[FoundPart] = field(default_factory=list)
    objects: dict[str, FoundPart] = field(default_factory=dict)
    records: dict[str, list[bytes]] = field(default_factory=dict)
    lock_epoch: int = 1
    made: int = 0

    @property
    def commit_offset(self) -> int:
        return self.committed[-1].part.end_offset if self.committed else BASE

    def digest_at(self, offset: int) -> bytes:
        return extend_digest(EMPTY_DIGEST, self.log[: offset - BASE])

    def step(self, name: str, number: int, how: object) -> None:
        match name:
            case "append":
                for _ in range(number):
                    self.made += 1
                    self.log.append(b"%061d" % self.made)
            case "upload":
                end = min(self.commit_offset + number, BASE + len(self.log))
                if end > self.commit_offset and how != "lost":
                    part = self.put(self.commit_offset, end)
                    if how == "committed":
                        self.committed.append(part)
            case "merge":
                first, count = number % 5, 2 + number // 5
                run = self.committed[first : first + count]
                if len(run) > 1:
                    part = self.put(run[0].part.base_offset, run[-1].part.end_offset)
                    if how == "committed":
                        self.committed[first : first + len(run)] = [part]
            case "new life":
                self.lock_epoch += 1
            case "power cut":
                self.lock_epoch += 1
                del self.log[max(self.commit_offset - BASE, len(self.log) - number) :]
            case "sweep":
                named = {found.part.object_key for found in self.committed}
                for key in [key for key in self.objects if key not in named][number::2]:
                    del self.objects[key]
            case _:
                raise AssertionError(name)

    def put(self, base: int, end: int) -> FoundPart:
        self.made += 1
        key = f"{base}-{end}.{self.lock_epoch}.{self.made}"
        part = RemotePart(key, 0, 1, base, end)
        found = FoundPart(part, self.digest_at(base), self.digest_at(end), self.lock_epoch, self.made)
        self.objects[key] = found
        self.records[key] = self.log[base - BASE : end - BASE]
        return found


@pytest.mark.fault("bucket-several-complete-attempts")
@given(st.lists(steps, max_size=60), st.randoms(use_true_random=False))
def test_the_chosen_chain_holds_what_was_committed_as_it_was(history: list[tuple[str, int, object]], chance) -> None:  # type: ignore[no-untyped-def]
    bucket = Bucket()
    for step in history:
        bucket.step(*step)
    parts = list(bucket.objects.values())
    chance.shuffle(parts)
    chain = choose_chain(BASE, EMPTY_DIGEST, parts)
    at, found = BASE, []
    for piece in chain:
        assert piece.part.base_offset == at, "no gap"
        at = piece.part.end_offset
        found += bucket.records[piece.part.object_key]
    committed = bucket.log[: bucket.commit_offset - BASE]
    assert found[: len(committed)] == committed
    assert chain == choose_chain(BASE, EMPTY_DIGEST, reversed(parts)), "whatever the order of the listing"


def a_part(base: int, end: int, before: bytes, after: bytes, lock_epoch: int, attempt: int = 1) -> FoundPart:
    return FoundPart(
        RemotePart(f"{base}-{end}.{lock_epoch}.{attempt}", 0, 1, base, end), before, after, lock_epoch, attempt
    )


@pytest.mark.fault("bucket-several-complete-attempts")
def test_of_two_parts_with_other_records_for_the_same_offsets_the_later_holders_counts_though_it_is_shorter() -> None:
    lost = [a_part(0, 100, EMPTY_DIGEST, b"lost", 1), a_part(100, 200, b"lost", b"also lost", 1)]
    true = a_part(0, 15, EMPTY_DIGEST, b"true", 2)
    assert choose_chain(0, EMPTY_DIGEST, [*lost, true]) == (true,)


def test_parts_that_do_not_continue_from_one_another_are_not_joined() -> None:
    first = a_part(0, 10, EMPTY_DIGEST, b"a", 1)
    assert choose_chain(0, EMPTY_DIGEST, [first, a_part(10, 20, b"b", b"c", 9)]) == (first,)


def test_what_goes_beyond_the_known_end_is_of_a_lost_tail() -> None:
    beyond, within = a_part(0, 20, EMPTY_DIGEST, b"x", 9), a_part(0, 10, EMPTY_DIGEST, b"y", 1)
    assert choose_chain(0, EMPTY_DIGEST, [beyond, within], end_offset=15) == (within,)


def test_nothing_begins_at_the_base() -> None:
    assert choose_chain(5, EMPTY_DIGEST, [a_part(6, 7, EMPTY_DIGEST, b"x", 1)]) == ()
