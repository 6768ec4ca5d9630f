"""Whatever disk, metadata and object store a restart finds, and wherever it is cut short: nothing that is known to have
been written is cut, freed or forgotten, and what is served reaches at least as far.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.leading.shard_life import StopCause
from stratalog.machines.restart import restart_events
from stratalog.machines.restart.shard_healing import (
    GiveUp,
    HealingStep,
    StopHealing,
    TryAgain,
)
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteState, Segment, SegmentState
from support.restart_steps import Work
from support.restart_words import BATCH_BYTES
from support.simulated_disk import (
    NODE,
    WHOLE,
    DrawnFile,
    PowerCut,
    World,
    key_of,
    producers_at,
    segment_of,
)


def known_end(world: World, segment: Segment) -> int:
    """As the design says it, put together here once more."""
    if segment.end_offset is not None:
        return segment.end_offset
    claim = world.checkpoints.get(segment.key)
    witnesses = [segment.base_offset, segment.remote.commit_offset, world.log_start]
    return max(witnesses if claim is None else [*witnesses, claim.end_offset])


def whole_end(world: World, key: SegmentKey) -> int:
    """Where whole batches end that are read from the file's start, or from its checkpoint where that is farther and not
    refuted. What is damaged below a checkpoint is for readers to find."""
    file, claim = world.files.get(key), world.checkpoints.get(key)
    if file is None:
        return key.base_offset
    cell = file.whole_from(0)
    if claim is not None and claim.position == (claim.end_offset - key.base_offset) * BATCH_BYTES <= file.size_bytes:
        first = claim.position // BATCH_BYTES
        is_led_to = first == len(file.cells) or not set(file.cells[:first]) & set("0/")
        if is_led_to or file.cells[first] in WHOLE:
            cell = max(cell, file.whole_from(first))
    return key.base_offset + cell


class WatchedWorld(World):
    """Looks at each step before it is done."""

    def unsealed(self) -> dict[SegmentKey, Segment]:
        return {
            segment.key: segment
            for segment in self.segments
            if segment.state in (SegmentState.ACTIVE, SegmentState.SEALING)
        }

    def do_step(self, step: restart_events.RestartStep) -> restart_events.RestartEvent | None:
        listed = {segment.key: segment for segment in self.segments}
        unsealed = self.unsealed()
        match step:
            case restart_events.CutTail(key, position):
                end = key.base_offset + position // BATCH_BYTES
                assert end == whole_end(self, key), f"whole batches cut from {key}"
                if key in unsealed:
                    assert end >= known_end(self, unsealed[key]), f"{key} cut below what is known"
            case restart_events.FreeLeftover(key):
                assert listed[key].remote.state is RemoteState.COMPLETE
                assert NODE not in listed[key].local_nodes
            case restart_events.SetAside(key):
                assert key not in listed or self.files[key].is_headless
            case restart_events.RecreateFile(key):
                assert key not in self.files or not self.files[key].cells
            case restart_events.RevokeCheckpoints(keys) | restart_events.RevokeStale(keys):
                for key in keys:
                    if key in unsealed and not self.is_topic_deleted:
                        assert whole_end(self, key) >= known_end(self, unsealed[key]), f"{key}: its witness is gone"
            case restart_events.Serve():
                self._check_served(step, unsealed)
            case restart_events.Heal(segment, local_end, end):
                assert local_end < end == known_end(self, segment)
                assert step.log.active is None and step.log.high_watermark >= end
            case restart_events.StopShard():
                assert step.log.active is None
            case _:
                pass
        return super().do_step(step)

    def _check_served(self, step: restart_events.Serve, unsealed: dict[SegmentKey, Segment]) -> None:
        log = step.log
        found = [*log.ended, *([log.active] if log.active is not None else [])]
        ends = {one.key: one.end_offset for one in found}
        for before, after in pairwise(found):
            assert before.end_offset == after.key.base_offset, "the log has a gap"
        for key, segment in unsealed.items():
            assert ends.get(key, key.base_offset) >= known_end(self, segment), "less is served than is known"
            assert log.high_watermark >= known_end(self, segment)
        for one in found:
            assert one.end_offset == whole_end(self, one.key)
            assert one.size_bytes == len(self.files[one.key].cells) * BATCH_BYTES, "something follows"
            assert one.is_confirmed == (one.key in unsealed)
            assert not one.is_confirmed or one.end_offset <= log.high_watermark
            assert one.is_confirmed or one.key.base_offset >= log.high_watermark, "shown before it is confirmed"

    def heal_step(self, step: HealingStep) -> Work:
        match step:
            case restart_events.RecreateFile(key):
                assert key not in self.files
            case restart_events.RevokeCheckpoints(keys):
                for key in keys:
                    assert whole_end(self, key) >= known_end(self, self.unsealed()[key])
            case GiveUp(segment, holes, _):
                assert self.may_give_up or all(end <= self.log_start for _, end in holes), "nobody deleted it"
                whole = segment.base_offset + self.files[segment.key].whole_from(0)
                for begin, end in holes:
                    assert begin >= whole
                    for offset in range(begin, end):
                        is_asked_for = self.has_store and offset in self.store_lacks
                        assert is_asked_for or offset >= segment.remote.commit_offset
            case _:
                pass
        return (yield from super().heal_step(step))

    def live(self, doubted_epoch: int | None) -> None:
        """A start, and healing until it ends."""
        self.start(doubted_epoch)
        for _ in range(len(self.segments) + 2):
            if not isinstance(self.outcome, restart_events.Heal | TryAgain):
                return
            self.attempt()
        assert isinstance(self.outcome, TryAgain), "healing goes round in circles"


@st.composite
def drawings(draw: st.DrawFn, length: int) -> str:
    """What may have become of a file with this many batches."""
    cells = "." * draw(st.one_of(st.just(length), st.integers(0, length)))
    for _ in range(draw(st.integers(0, 2))):
        if cells:
            at = draw(st.integers(0, len(cells) - 1))
            cells = cells[:at] + draw(st.sampled_from("x0")) + cells[at + 1 :]
    return cells + draw(st.sampled_from(["", "", "/", "000"]))


@st.composite
def worlds(draw: st.DrawFn) -> WatchedWorld:
    world = WatchedWorld(
        is_fsync=draw(st.booleans()),
        may_give_up=draw(st.booleans()),
        has_store=draw(st.integers(0, 3)) > 0,
        is_store_away=draw(st.integers(0, 4)) == 0,
    )
    base = 0
    states = [SegmentState.SEALED] * draw(st.integers(0, 2)) + [SegmentState.SEALING] * draw(st.integers(0, 2))
    for epoch, state in enumerate([*states, SegmentState.ACTIVE]):
        key, length = key_of(epoch, base), draw(st.integers(0, 5))
        base += length
        commit = draw(st.sampled_from([-1, -1, key.base_offset + draw(st.integers(0, length))]))
        if state is SegmentState.SEALED:
            segment = segment_of(key, state, base, is_here=draw(st.booleans()), is_stored=draw(st.booleans()))
        else:
            end = base if state is SegmentState.SEALING else None
            segment = segment_of(key, state, end, commit_offset=commit)
        world.segments.append(segment)
        if draw(st.integers(0, 4)) > 0:
            world.files[key] = DrawnFile(draw(drawings(length)), is_headless=draw(st.integers(0, 9)) == 0)
        if state is not SegmentState.SEALED and draw(st.booleans()):
            _add_checkpoint(draw, world, key, length)
    world.log_start = draw(st.one_of(st.just(0), st.integers(0, base)))
    for epoch in range(len(world.segments), len(world.segments) + draw(st.integers(0, 2))):
        key, length = key_of(epoch, base + draw(st.sampled_from([0, 0, 0, 1]))), draw(st.integers(0, 3))
        world.files[key] = DrawnFile(draw(drawings(length)), is_foreign=draw(st.integers(0, 5)) == 0)
        base = key.base_offset + length
    world.store_lacks = draw(st.sets(st.integers(0, max(0, base)), max_size=3))
    world.failing = set(draw(st.lists(st.sampled_from(sorted(world.files)), max_size=1))) if world.files else set()
    return world


def _add_checkpoint(draw: st.DrawFn, world: World, key: SegmentKey, length: int) -> None:
    flushed = draw(st.integers(0, length))
    place = draw(st.integers(1, length)) if flushed and draw(st.integers(0, 5)) == 0 else flushed
    file = world.files.get(key)
    size_bytes = 0 if file is None or file.is_headless else file.size_bytes
    if size_bytes == place * BATCH_BYTES or size_bytes <= place * BATCH_BYTES < flushed * BATCH_BYTES:
        place = flushed  # one that is wrong and just where the file ends, now or later, is believed: nothing is read
    end_offset = key.base_offset + flushed
    world.checkpoints[key] = restart_events.CheckpointClaim(place * BATCH_BYTES, end_offset, producers_at(end_offset))


@pytest.mark.fault("file-cut-gone-offset")
@given(worlds(), st.sampled_from([None, -1, 0, 1, 2]))
@settings(max_examples=300, deadline=None)
def test_nothing_that_is_known_to_have_been_written_is_cut_or_passed_over(
    world: WatchedWorld, doubted_epoch: int | None
) -> None:
    """What must hold is in `WatchedWorld`."""
    world.live(doubted_epoch)
    assert isinstance(world.outcome, restart_events.Serve | restart_events.StopShard | StopHealing | TryAgain)
    if isinstance(world.outcome, StopHealing) and world.outcome.cause is StopCause.DATA_LOST:
        assert world.outcome.lost, "what is lost is not named"
        assert world.missing is not None
        for begin, end in world.outcome.lost:
            assert world.missing.segment.base_offset <= begin < end <= world.missing.known_end


@pytest.mark.fault("file-cut-gone-offset")
@given(worlds(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_restart_that_is_cut_short_between_any_two_steps_is_begun_again_and_ends_no_worse(
    world: WatchedWorld, data: st.DataObject
) -> None:
    whole = deepcopy(world)
    whole.live(None)
    steps = whole.steps_done
    for lives in range(2):
        world.steps_left = data.draw(st.integers(0, steps), label=f"steps of life {lives}")
        try:
            world.live(None)
        except PowerCut:
            continue
        break
    world.steps_left = -1
    world.live(None)
    assert type(world.outcome) is type(whole.outcome)
    if isinstance(world.outcome, restart_events.Serve) and isinstance(whole.outcome, restart_events.Serve):
        assert world.outcome.log.high_watermark == whole.outcome.log.high_watermark
        assert _ends(world.outcome) == _ends(whole.outcome)
    if isinstance(world.outcome, StopHealing) and isinstance(whole.outcome, StopHealing):
        assert world.outcome.lost == whole.outcome.lost


def _ends(served: restart_events.Serve) -> list[tuple[SegmentKey, int]]:
    """Without those that nothing was written to: whether they have a file makes no difference."""
    log = served.log
    found = [*log.ended, *([log.active] if log.active is not None else [])]
    return [(one.key, one.end_offset) for one in found if one.end_offset > one.key.base_offset]


@given(worlds())
@settings(max_examples=200, deadline=None)
def test_a_restart_that_served_finds_nothing_to_do_at_the_next_one(world: WatchedWorld) -> None:
    world.live(None)
    if not isinstance(world.outcome, restart_events.Serve):
        return
    first, world.said = world.outcome, []
    files = deepcopy(world.files)
    world.live(first.log.doubted_epoch)
    assert isinstance(world.outcome, restart_events.Serve) and _ends(world.outcome) == _ends(first)
    assert world.files == files
    touched: list[Callable[[str], bool]] = [
        lambda said, verb=verb: said.startswith(verb) for verb in ("cut", "set", "make", "free", "revoke", "heal")
    ]
    assert not [said for said in world.said if any(matches(said) for matches in touched)]
