"""The uploader decides: plain events in, plain effects out, no clock but the one given."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.upload_duty import keeper_of
from stratalog.machines.tiering.upload_state import uploads
from stratalog.machines.tiering.uploader import Uploader
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, Segment, SegmentState

TOPIC = UUID(int=7)
LIMITS = upload_events.UploadLimits(
    chunk_bytes=1_000, bundle_bytes=20_000, in_flight_bytes=40_000, max_requests=4, interval_ms=1_000
)


def _key(shard: int = 0, base: int = 0, epoch: int = 0) -> SegmentKey:
    return SegmentKey(TOPIC, shard, epoch, base)


def _part(base: int, end: int, size: int = 700, name: str = "bundles/1/1/1.1.bundle") -> RemotePart:
    return RemotePart(name, 0, size, base, end)


def _seen(
    key: SegmentKey, unsent: int = 0, *, end: int | None = None, commit: int = -1, parts: tuple[RemotePart, ...] = ()
) -> upload_events.SegmentSeen:
    return upload_events.SegmentSeen(key, end is not None, end, commit, parts, True, unsent)


class Bench:
    """An uploader with its lock, checked after every step."""

    def __init__(self, limits: upload_events.UploadLimits = LIMITS) -> None:
        self.machine = Uploader(limits, lambda key: key.startswith("bundles/"))
        self.now_ms = 0
        self.is_checked = True
        self.step(upload_events.LockGained(1))

    def step(self, *events: object, at: int | None = None) -> list[upload_events.UploaderEffect]:
        self.now_ms = self.now_ms if at is None else at
        effects = self.machine.step_all(events, self.now_ms)  # type: ignore[arg-type]
        if self.is_checked:
            self.machine.check_invariants()
        return effects


def _moved(key: SegmentKey, offset: int, unsent: int = 0, parts: tuple[RemotePart, ...] = ()) -> upload_events.Moved:
    return upload_events.Moved(key, offset, parts, unsent, is_ours=True)


def test_small_data_waits_for_its_deadline_and_then_all_small_data_goes_in_one_bundle() -> None:
    bench = Bench()
    assert bench.step(_seen(_key(0), 100), _seen(_key(1), 100), at=0) == []
    assert bench.step(_seen(_key(2), 100), at=900) == []
    assert bench.machine.next_wake_ms(900) == 1_000
    (effect,) = bench.step(upload_events.TimePassed(), at=1_000)
    assert isinstance(effect, upload_events.SendBundle)
    assert [piece.key.shard for piece in effect.pieces] == [0, 1, 2]


def test_a_chunk_of_data_goes_at_once() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000))
    assert isinstance(effect, upload_events.SendChunk)
    assert (effect.piece.base_offset, effect.piece.max_bytes) == (0, 1_000)


def test_a_chunk_takes_what_came_meanwhile_up_to_twice_its_size() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 5_000))
    assert isinstance(effect, upload_events.SendChunk)
    assert effect.piece.max_bytes == 2_000


def test_a_segment_has_one_range_in_flight() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 5_000))
    assert isinstance(effect, upload_events.SendChunk)
    assert bench.step(upload_events.CommittedGrew(_key(), 9_000), upload_events.FlushRequested(), at=5_000) == []
    (following,) = bench.step(upload_events.TaskEnded(effect.task, (_moved(_key(), 20, 7_000),)))
    assert isinstance(following, upload_events.SendChunk)
    assert following.piece.base_offset == 20


def test_f75_a_piece_larger_than_the_budget_goes_alone() -> None:
    """F75."""
    bench = Bench(replace(LIMITS, chunk_bytes=20_000, bundle_bytes=20_000))
    effects = bench.step(_seen(_key(0), 90_000), _seen(_key(1), 90_000))
    assert len(effects) == 1


def test_bytes_in_flight_stay_within_the_budget() -> None:
    bench = Bench(replace(LIMITS, max_requests=100))
    effects = bench.step(*(_seen(_key(shard), 2_000) for shard in range(50)))
    assert len(effects) == 20


def test_a_doubtful_put_is_repeated_at_once_with_what_came_meanwhile() -> None:
    """F42, F49: non-stop write."""
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000))
    assert isinstance(effect, upload_events.SendChunk)
    bench.step(upload_events.CommittedGrew(_key(), 1_600))
    (again,) = bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.DOUBTFUL, "timeout", 0.5))
    assert isinstance(again, upload_events.SendChunk)
    assert again.task != effect.task
    assert (again.piece.base_offset, again.piece.max_bytes) == (0, 1_600)


def test_a_doubtful_bundle_is_repeated_at_once_not_an_interval_later() -> None:
    bench = Bench()
    bench.step(_seen(_key(0), 100), _seen(_key(1), 100))
    (effect,) = bench.step(upload_events.TimePassed(), at=1_000)
    assert isinstance(effect, upload_events.SendBundle)
    (again,) = bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.DOUBTFUL, "timeout", 0.5))
    assert isinstance(again, upload_events.SendBundle)
    assert len(again.pieces) == 2


def test_f51_doubts_in_a_row_mean_that_the_store_is_away_and_are_reported_once() -> None:
    """F51: the first two are repeated at once, then the whole node backs off."""
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000))
    told = []
    for _ in range(5):
        assert isinstance(effect, upload_events.SendChunk)
        effects = bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.DOUBTFUL, "timeout", 1.0))
        told += [e for e in effects if isinstance(e, upload_events.ReportStore)]
        sends = [e for e in effects if isinstance(e, upload_events.SendChunk)]
        if not sends:
            wake = bench.machine.next_wake_ms(bench.now_ms)
            assert wake is not None and wake > bench.now_ms
            sends = [
                e for e in bench.step(upload_events.TimePassed(), at=wake) if isinstance(e, upload_events.SendChunk)
            ]
        (effect,) = sends
    assert len(told) == 1 and told[0].is_away
    assert isinstance(effect, upload_events.SendChunk)
    (back, *_) = bench.step(upload_events.TaskEnded(effect.task, (_moved(_key(), 5),)))
    assert isinstance(back, upload_events.ReportStore) and not back.is_away and back.away_ms > 0


def test_f45_after_a_refusal_one_trial_at_a_time_for_the_whole_node() -> None:
    """F45: the window halves at each refusal and opens again with each success."""
    bench = Bench()
    effects = bench.step(*(_seen(_key(shard), 1_000) for shard in range(10)))
    assert len(effects) == 4
    for effect in effects:
        assert isinstance(effect, upload_events.SendChunk)
        bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.REFUSED, "503", 0.0))
    wake = bench.machine.next_wake_ms(0)
    assert wake == LIMITS.backoff_ms // 2
    trials = bench.step(upload_events.TimePassed(), at=wake)
    assert len(trials) == 2
    failed, other = (effect.task for effect in trials if isinstance(effect, upload_events.SendChunk))
    assert bench.step(upload_events.TaskFailed(failed, upload_events.TaskFailure.REFUSED, "503", 0.0)) == []
    sent = bench.step(upload_events.TaskEnded(other, (_moved(_key(4), 1),)))
    assert len([effect for effect in sent if isinstance(effect, upload_events.SendChunk)]) == 2


def test_a_fault_of_the_program_holds_its_segments_and_says_nothing_about_the_store() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(0), 1_000))
    assert isinstance(effect, upload_events.SendChunk)
    assert bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.FAULT, "an assertion", 0.0)) == [
        upload_events.ReportHeld(_key(0), "an assertion", is_final=False)
    ]
    assert bench.machine.describe(0).store_away_ms == 0
    (other,) = bench.step(_seen(_key(1), 1_000))
    assert isinstance(other, upload_events.SendChunk), "other segments do not wait"
    (again,) = bench.step(upload_events.TimePassed(), at=LIMITS.first_hold_ms)
    assert isinstance(again, upload_events.SendChunk) and again.piece.key == _key(0)


def test_the_pause_of_a_segment_that_does_not_read_doubles_up_to_a_limit_and_starts_again_once_it_was_read() -> None:
    """It may wait for the seal of the segment before it, for a moment; or for a disk, for days."""
    bench, at, pauses = Bench(), 0, []
    (sent,) = bench.step(_seen(_key(0), 3_000))
    for _ in range(9):
        assert isinstance(sent, upload_events.SendChunk)
        failure = upload_events.Unreadable(_key(0), "the segment before it is not sealed yet", is_final=False)
        bench.step(upload_events.TaskEnded(sent.task, (failure,)), at=at)
        wake = bench.machine.next_wake_ms(at)
        assert wake is not None and bench.step(upload_events.TimePassed(), at=wake - 1) == []
        (sent,) = bench.step(upload_events.TimePassed(), at=wake)
        pauses.append(wake - at)
        at = wake
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert isinstance(sent, upload_events.SendChunk)
    (sent,) = bench.step(upload_events.TaskEnded(sent.task, (_moved(_key(0), 1, unsent=2_000),)), at=at)
    assert isinstance(sent, upload_events.SendChunk)
    bench.step(upload_events.TaskEnded(sent.task, (failure,)), at=at)
    assert bench.machine.next_wake_ms(at) == at + 1_000


@pytest.mark.fault("fault-program-ends-upload")
def test_segments_whose_bundle_ended_by_a_fault_are_sent_apart_until_it_is_known_which_one_it_was() -> None:
    bench = Bench()
    (effect,) = bench.step(*(_seen(_key(shard), 10) for shard in range(3)), upload_events.FlushRequested())
    assert isinstance(effect, upload_events.SendBundle) and len(effect.pieces) == 3
    bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.FAULT, "an assertion", 0.0))
    apart = bench.step(_seen(_key(3), 10), upload_events.FlushRequested(), at=LIMITS.first_hold_ms)
    sent = [[piece.key.shard for piece in one.pieces] for one in apart if isinstance(one, upload_events.SendBundle)]
    assert sorted(sent) == [[0], [1], [2], [3]]
    first = next(one for one in apart if isinstance(one, upload_events.SendBundle) and one.pieces[0].key == _key(0))
    bench.step(upload_events.TaskEnded(first.task, (_moved(_key(0), 5),)))
    together = bench.step(upload_events.CommittedGrew(_key(0), 10), _seen(_key(4), 10), upload_events.FlushRequested())
    assert [len(one.pieces) for one in together if isinstance(one, upload_events.SendBundle)] == [2], (
        "it was not this one"
    )


def test_without_the_lock_nothing_begins_and_with_it_all_continues() -> None:
    """F6, F86."""
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000))
    assert isinstance(effect, upload_events.SendChunk)
    bench.step(upload_events.LockLost())
    assert bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.LOCK_LOST, "fenced", 0.0)) == []
    assert bench.machine.next_wake_ms(0) is None
    (again,) = bench.step(upload_events.LockGained(2))
    assert isinstance(again, upload_events.SendChunk)


def test_f8_a_late_answer_about_an_old_lock_does_not_stop_the_new_one() -> None:
    """F8."""
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000))
    assert isinstance(effect, upload_events.SendChunk)
    bench.step(upload_events.LockLost(), upload_events.LockGained(2))
    (again,) = bench.step(
        upload_events.TaskFailed(effect.task, upload_events.TaskFailure.LOCK_LOST, "epoch 1 was fenced", 0.0)
    )
    assert isinstance(again, upload_events.SendChunk)


def test_f38_a_segment_that_goes_cancels_its_upload_and_frees_the_budget() -> None:
    """F38."""
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000))
    assert isinstance(effect, upload_events.SendChunk)
    assert bench.step(upload_events.SegmentGone(_key())) == [upload_events.CancelTask(effect.task)]
    bench.step(upload_events.TaskFailed(effect.task, upload_events.TaskFailure.CANCELLED, "", 0.0))
    assert bench.machine.describe(0).bytes_in_flight == 0
    assert bench.machine.is_settled()


def test_a_segment_that_goes_does_not_cancel_the_bundle_it_shares() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(0), 10), _seen(_key(1), 10), upload_events.FlushRequested())
    assert isinstance(effect, upload_events.SendBundle)
    assert bench.step(upload_events.SegmentGone(_key(0))) == []


def test_a_sealed_tail_goes_at_once_as_a_chunk_of_its_own_and_then_the_segment_is_published() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 10, end=3))
    assert isinstance(effect, upload_events.SendChunk)
    part = _part(0, 3, name="data/own.chunk")
    (publish,) = bench.step(upload_events.TaskEnded(effect.task, (_moved(_key(), 3, 0, (part,)),)))
    assert publish == upload_events.Publish(publish.task, _key(), (part,))
    bench.step(upload_events.TaskEnded(publish.task, (upload_events.Gone(_key()),)))
    assert not bench.machine.knows(_key())


def test_a_sealed_segment_takes_its_bundle_parts_home_before_it_is_published() -> None:
    bench = Bench()
    own, shared = _part(0, 5, name="data/own.chunk"), (_part(5, 6), _part(6, 7))
    (effect,) = bench.step(_seen(_key(), 0, end=7, commit=7, parts=(own, *shared)))
    assert isinstance(effect, upload_events.SendChunk)
    assert effect.piece.replaces == shared
    home = _part(5, 7, name="data/home.chunk")
    (publish,) = bench.step(upload_events.TaskEnded(effect.task, (_moved(_key(), 7, 0, (own, home)),)))
    assert isinstance(publish, upload_events.Publish)
    assert publish.parts == (own, home)


@pytest.mark.fault("data-uploaded-manifest-node")
def test_f31_a_sealed_segment_found_at_start_is_published_though_nothing_happens() -> None:
    """F31."""
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 0, end=4, commit=4, parts=(_part(0, 4, name="data/c.chunk"),)))
    assert isinstance(effect, upload_events.Publish)


def test_sixteen_small_parts_merge_into_one() -> None:
    bench = Bench()
    parts = tuple(_part(n, n + 1) for n in range(16))
    (effect,) = bench.step(_seen(_key(), 0, commit=16, parts=parts))
    assert isinstance(effect, upload_events.SendChunk | upload_events.SendBundle)
    pieces = effect.pieces if isinstance(effect, upload_events.SendBundle) else (effect.piece,)
    assert pieces[0].replaces == parts
    assert bench.step(upload_events.CommittedGrew(_key(), 10), at=5_000) == [], "one range in flight"
    assert bench.step(upload_events.TaskEnded(effect.task, (_moved(_key(), 16, 10, (_part(0, 16, 9_000),)),))) == []
    (then,) = bench.step(upload_events.TimePassed(), at=6_000)
    assert isinstance(then, upload_events.SendBundle), "what waited meanwhile goes by its own deadline"


def test_parts_that_the_janitor_wants_moved_move_unless_they_have_moved() -> None:
    bench = Bench(replace(LIMITS, chunk_bytes=10_000))
    parts = (_part(0, 1), _part(1, 2, name="bundles/other"))
    bench.step(_seen(_key(), 0, commit=2, parts=parts))
    (effect,) = bench.step(upload_events.RewriteRequested(_key(), (parts[1],)))
    assert isinstance(effect, upload_events.SendBundle)
    assert effect.pieces[0].replaces == (parts[1],)
    bench.step(
        upload_events.TaskEnded(effect.task, (_moved(_key(), 2, 0, (parts[0], _part(1, 2, name="bundles/new"))),))
    )
    assert bench.step(upload_events.RewriteRequested(_key(), (parts[1],))) == []
    assert bench.machine.is_settled()


def test_parts_that_merge_into_a_large_one_get_an_object_of_their_own() -> None:
    """So that the seal need not take it home once more."""
    bench = Bench(replace(LIMITS, chunk_bytes=10_000))
    parts = tuple(_part(n, n + 1, 1_500) for n in range(16))
    (effect,) = bench.step(_seen(_key(), 0, commit=16, parts=parts))
    assert isinstance(effect, upload_events.SendChunk)
    assert effect.piece.replaces == parts


def test_an_older_answer_does_not_move_the_commit_offset_back() -> None:
    bench = Bench()
    (effect,) = bench.step(_seen(_key(), 1_000, commit=10))
    assert isinstance(effect, upload_events.SendChunk)
    bench.step(upload_events.TaskEnded(effect.task, (_moved(_key(), 50, 0),)))
    bench.step(_seen(_key(), 0, commit=10))
    assert bench.machine.commit_offset(_key()) == 50


def test_bundles_are_not_starved_by_a_backlog_of_chunks() -> None:
    """F80."""
    bench = Bench(replace(LIMITS, max_requests=1))
    bench.step(*(_seen(_key(shard), 1_000) for shard in range(100)), _seen(_key(1_000), 10))
    bench.now_ms = 1_000
    kinds: list[str] = []
    task = 1
    while "SendBundle" not in kinds:
        assert len(kinds) < 6, kinds
        (effect,) = bench.step(upload_events.TaskEnded(task, (_moved(_key(task - 1), 1),)))
        kinds.append(type(effect).__name__)
        assert isinstance(effect, upload_events.SendChunk | upload_events.SendBundle)
        task = effect.task


def test_ten_thousand_quiet_shards_cost_a_handful_of_puts_per_interval() -> None:
    """Issue item 6: requests follow bytes and time, not shards: ceil(bytes / bundle) bundles, or a few more so that no
    step of the event loop is long."""
    limits = upload_events.UploadLimits()
    bench = Bench(limits)
    bench.is_checked = False  # it looks at every segment at every step
    for second in range(10):
        first = second * 1_000
        new = (_seen(_key(shard), 120) for shard in range(first, first + 1_000))
        assert bench.step(*new, at=second * 1_000) == []
    bench.now_ms = limits.interval_ms
    puts: list[upload_events.UploaderEffect] = []
    while len(puts) < 3:
        effects = bench.step(upload_events.TimePassed())
        assert len(effects) == 1, "a step begins one large bundle; the next goes on at once"
        puts += effects
        assert bench.machine.next_wake_ms(bench.now_ms) == bench.now_ms
    assert bench.step(upload_events.TimePassed()) == []
    assert sum(len(put.pieces) for put in puts if isinstance(put, upload_events.SendBundle)) == 10_000
    for put in puts:
        assert isinstance(put, upload_events.SendBundle)
        bench.step(upload_events.TaskEnded(put.task, tuple(_moved(piece.key, 1) for piece in put.pieces)))
    assert bench.machine.next_wake_ms(bench.now_ms) is None, "then a quiet node sleeps"


def test_the_age_of_the_oldest_unsent_data_is_reported() -> None:
    bench = Bench()
    bench.step(_seen(_key(0), 10), at=100)
    bench.step(_seen(_key(1), 10), at=600)
    assert bench.machine.describe(700).oldest_unsent_ms == 600
    assert bench.machine.describe(700).unsent_bytes == 20


def _segment(**changes: object) -> Segment:
    base = Segment(_key(), SegmentState.SEALED, None, (1, 2, 3), (1, 2, 3), 0, 0, end_offset=5, local_nodes=(2, 3))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_leader_uploads_an_active_segment_and_the_first_holder_a_sealed_one() -> None:
    active = _segment(state=SegmentState.ACTIVE, leader=3)
    assert _who_uploads(active, {1, 2, 3}) == _who_uploads(active, {1, 2}) == [3], "the leader, dead or not"
    assert _who_uploads(_segment(), {1, 2, 3}) == [2]
    assert _who_uploads(_segment(), {1, 3}) == [3], "the next one that lives"
    assert _who_uploads(_segment(replicas=(3, 2, 1)), {1, 2, 3}) == [3], "the leader that was"
    assert _who_uploads(_segment(), {1}) == [], "nobody who has it lives"
    assert _who_uploads(_segment(remote=RemoteCopy(RemoteState.COMPLETE)), {1, 2, 3}) == []
    assert _who_uploads(_segment(state=SegmentState.DELETED), {1, 2, 3}) == []


def _who_uploads(segment: Segment, alive: set[int]) -> list[int]:
    return [node for node in (1, 2, 3) if uploads(segment, node, alive.__contains__, lambda _: None)]


def test_the_first_living_replica_takes_away_what_is_left_of_a_deleted_segment() -> None:
    deleted = _segment(state=SegmentState.DELETED, local_nodes=())
    mounted: dict[int, int | None] = {}
    retired = set[int]()

    def keeper(*alive: int) -> int | None:
        return keeper_of(deleted, alive.__contains__, mounted.get, retired.__contains__, lambda: 8)

    assert [keeper(1, 2, 3), keeper(2, 3), keeper()] == [1, 2, None]
    mounted |= {2: None, 3: 7}
    assert keeper(1) == 1
    assert keeper() == 7, "who holds what one of them left"
    mounted.clear()
    retired |= {1, 2}
    assert keeper() is None, "one is only away"
    retired |= {3}
    assert keeper() == 8, "all have left, and nothing of them is mounted"


@pytest.mark.fault("batches-larger-upload-share")
def test_a_batch_larger_than_its_piece_is_asked_for_again_once_there_is_room_for_all_of_it() -> None:
    bench = Bench()
    first, second = bench.step(_seen(_key(0), 60_000), _seen(_key(1), 1_500))
    assert isinstance(first, upload_events.SendChunk) and isinstance(second, upload_events.SendChunk)
    assert first.piece.max_bytes == LIMITS.max_chunk_bytes
    assert bench.step(upload_events.TaskEnded(first.task, (upload_events.TooLarge(_key(0), 50_000),))) == [], (
        "the other is still in flight"
    )
    (again,) = bench.step(upload_events.TaskEnded(second.task, (_moved(_key(1), 1),)))
    assert isinstance(again, upload_events.SendChunk)
    assert (again.piece.key, again.piece.max_bytes) == (_key(0), 50_000)
    (rest,) = bench.step(upload_events.TaskEnded(again.task, (_moved(_key(0), 1, 10_000),)))
    assert isinstance(rest, upload_events.SendChunk)
    assert rest.piece.max_bytes == LIMITS.max_chunk_bytes


def test_a_part_larger_than_a_bundle_waits_for_room_for_all_of_it() -> None:
    bench = Bench(replace(LIMITS, chunk_bytes=10_000))
    (first,) = bench.step(_seen(_key(0), 15_000))
    large = _part(0, 1, size=30_000)
    assert isinstance(first, upload_events.SendChunk)
    assert bench.step(_seen(_key(1), commit=1, parts=(large,)), upload_events.RewriteRequested(_key(1), (large,))) == []
    (move,) = bench.step(upload_events.TaskEnded(first.task, (_moved(_key(0), 1),)))
    assert isinstance(move, upload_events.SendChunk)
    assert move.piece.replaces == (large,)


def test_a_topics_own_size_says_when_its_chunks_go() -> None:
    bench = Bench()
    small, usual = _key(0), _key(1)
    effects = bench.step(replace(_seen(small, 300), chunk_bytes=200), _seen(usual, 300), at=0)
    assert [effect.piece.key for effect in effects] == [small]


def test_a_size_that_changes_counts_at_once() -> None:
    bench = Bench()
    key = _key(0)
    assert bench.step(_seen(key, 300), at=0) == []
    [effect] = bench.step(replace(_seen(key, 300), chunk_bytes=200), at=1)
    assert isinstance(effect, upload_events.SendChunk)


def test_chunks_grow_with_what_comes_during_an_upload_and_shrink_again() -> None:
    """The shard's rate times the store's time: else each upload leaves more behind than it takes."""
    bench = Bench()
    key = _key(0)

    def next_piece_bytes(unsent: int, offset: int) -> int:
        [task] = bench.machine._tasks
        effects = bench.step(upload_events.TaskEnded(task, (_moved(key, offset, unsent),)))
        [effect] = [one for one in effects if isinstance(one, upload_events.SendChunk)]
        return effect.piece.max_bytes

    [first] = bench.step(replace(_seen(key, 900), chunk_bytes=100), at=0)
    assert isinstance(first, upload_events.SendChunk)
    assert first.piece.max_bytes == 200
    assert next_piece_bytes(700, 10) == 700
    assert next_piece_bytes(LIMITS.max_chunk_bytes + 500, 20) == LIMITS.max_chunk_bytes, (
        "never more than the node's own"
    )
    assert next_piece_bytes(150, 30) == 150
    bench.step(upload_events.CommittedGrew(key, 900))
    assert next_piece_bytes(120, 40) == 120


def test_a_size_above_that_of_bundles_is_that_of_bundles() -> None:
    bench = Bench()
    effects = bench.step(replace(_seen(_key(0), LIMITS.bundle_bytes), chunk_bytes=1 << 40), at=0)
    assert [type(effect) for effect in effects] == [upload_events.SendChunk]


def test_a_topics_own_interval_says_how_long_its_data_wait() -> None:
    bench = Bench()
    assert bench.step(replace(_seen(_key(0), 100), interval_ms=300), at=0) == []
    assert bench.machine.next_wake_ms(0) == 300
    (effect,) = bench.step(upload_events.TimePassed(), at=300)
    assert isinstance(effect, upload_events.SendBundle) and effect.pieces[0].key == _key(0)


def test_a_short_interval_does_not_cut_the_data_of_a_long_one_and_a_long_one_takes_all_along() -> None:
    bench = Bench()
    short, usual, long = replace(_seen(_key(0), 100), interval_ms=100), _seen(_key(1), 100), _key(2)
    assert bench.step(short, usual, replace(_seen(long, 100), interval_ms=10_000), at=0) == []
    (first,) = bench.step(upload_events.TimePassed(), at=100)
    assert isinstance(first, upload_events.SendBundle) and [piece.key.shard for piece in first.pieces] == [0]
    (second,) = bench.step(upload_events.TaskEnded(first.task, (_moved(_key(0), 1, 50),)), at=1_000)
    assert isinstance(second, upload_events.SendBundle) and {p.key.shard for p in second.pieces} == {0, 1}
    moved = (_moved(_key(0), 2, 50), _moved(_key(1), 1, 50))
    bench.step(upload_events.TaskEnded(second.task, moved), at=9_990)
    (third,) = bench.step(upload_events.TimePassed(), at=10_000)
    assert isinstance(third, upload_events.SendBundle) and {p.key.shard for p in third.pieces} == {0, 1, 2}


def test_an_interval_that_changes_counts_for_what_waits_already() -> None:
    bench = Bench()
    assert bench.step(replace(_seen(_key(), 100), interval_ms=3_600_000), at=0) == []
    assert bench.step(replace(_seen(_key(), 100), interval_ms=500), at=100) == []
    assert bench.machine.next_wake_ms(100) == 500
    assert bench.step(replace(_seen(_key(), 100), interval_ms=2_000), at=200) == []
    assert bench.machine.next_wake_ms(200) == 2_000, "since the data came, not since the change"
    (effect,) = bench.step(replace(_seen(_key(), 100), interval_ms=50), at=300)
    assert isinstance(effect, upload_events.SendBundle)


def test_producers_of_direct_segments_wait_no_longer_than_the_nodes_own_interval_for_them() -> None:
    bench = Bench()
    assert bench.step(replace(_seen(_key(), 100), is_direct=True, interval_ms=3_600_000), at=0) == []
    assert bench.machine.next_wake_ms(0) == LIMITS.direct_interval_ms
