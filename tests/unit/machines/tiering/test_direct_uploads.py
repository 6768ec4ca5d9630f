"""Direct segments in the uploader: their producers wait for it (docs/direct-spec.md sections 1 and 4)."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.uploader import Uploader
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart

LIMITS = upload_events.UploadLimits(
    chunk_bytes=1_000,
    bundle_bytes=20_000,
    in_flight_bytes=40_000,
    interval_ms=10_000,
    direct_interval_ms=250,
    direct_bytes=3_000,
    merge_parts=4,
    direct_merge_parts=8,
)


def _key(shard: int) -> SegmentKey:
    return SegmentKey(UUID(int=7), shard, 0, 0)


def _seen(shard: int, unsent: int = 0, *, is_direct: bool = True, parts: int = 0) -> upload_events.SegmentSeen:
    committed = tuple(RemotePart("bundles/1/1/1.1.bundle", 0, 100, at, at + 1) for at in range(parts))
    return upload_events.SegmentSeen(_key(shard), False, None, parts, committed, True, unsent, is_direct=is_direct)


class Bench:
    def __init__(self, limits: upload_events.UploadLimits = LIMITS) -> None:
        self.machine = Uploader(limits, lambda key: key.startswith("bundles/"))
        self.step(upload_events.LockGained(1))

    def step(self, *events: upload_events.UploaderEvent, at: int = 0) -> list[upload_events.UploaderEffect]:
        effects = self.machine.step_all(events, at)
        self.machine.check_invariants()
        return effects


def _pieces(effect: upload_events.UploaderEffect) -> tuple[upload_events.Piece, ...]:
    assert isinstance(effect, upload_events.SendBundle | upload_events.SendChunk)
    return effect.pieces if isinstance(effect, upload_events.SendBundle) else (effect.piece,)


def _task(effect: upload_events.UploaderEffect) -> int:
    assert isinstance(effect, upload_events.SendBundle | upload_events.SendChunk)
    return effect.task


def _shards(effects: list[upload_events.UploaderEffect]) -> list[list[int]]:
    """Of each bundle."""
    assert all(isinstance(effect, upload_events.SendBundle) for effect in effects), effects
    return [
        [piece.key.shard for piece in effect.pieces]
        for effect in effects
        if isinstance(effect, upload_events.SendBundle)
    ]


def test_all_direct_shards_go_together_once_the_first_has_waited_for_its_interval() -> None:
    bench = Bench()
    assert bench.step(_seen(0, 10), _seen(9, 10, is_direct=False), at=0) == []
    assert bench.step(_seen(1, 10), at=200) == []
    assert bench.machine.next_wake_ms(200) == 250
    assert _shards(bench.step(upload_events.TimePassed(), at=250)) == [[0, 1]]
    assert bench.machine.next_wake_ms(250) == 10_000, "what no producer waits for stays"


def test_enough_bytes_of_all_together_do_not_wait() -> None:
    bench = Bench()
    assert bench.step(_seen(0, 900), _seen(1, 900), _seen(2, 900), at=0) == []
    assert _shards(bench.step(upload_events.CommittedGrew(_key(2), 999), _seen(3, 300), at=1)) == [[0, 1, 2, 3]]


def test_what_waits_for_the_object_store_is_counted_and_what_leaves_is_not() -> None:
    bench = Bench()
    bench.step(_seen(0, 900), _seen(1, 50), _seen(9, 70, is_direct=False), at=0)
    assert bench.machine.unstored_bytes == 950
    (sent,) = bench.step(upload_events.TimePassed(), at=250)
    assert isinstance(sent, upload_events.SendBundle) and bench.machine.unstored_bytes == 950, "in flight"
    moved = upload_events.Moved(_key(0), 5, (), 20, is_ours=True)
    bench.step(upload_events.TaskEnded(sent.task, (moved, upload_events.Gone(_key(1)))), at=300)
    assert bench.machine.unstored_bytes == 20
    bench.step(upload_events.SegmentGone(_key(0)), at=301)
    assert bench.machine.unstored_bytes == 0


def test_ten_thousand_shards_are_three_objects_each_interval() -> None:
    bench = Bench(upload_events.UploadLimits())
    machine = bench.machine
    machine.step_all([_seen(shard, 100) for shard in range(10_000)], 0)
    sent: list[upload_events.UploaderEffect] = []
    while (found := machine.step_all([upload_events.TimePassed()], 250)) or machine.next_wake_ms(250) == 250:
        sent += found
    assert len(sent) == 3 and sum(map(len, _shards(sent))) == 10_000


def test_parts_merge_late_while_more_is_to_be_sent_and_as_usual_while_nothing_is() -> None:
    (merge,) = Bench().step(_seen(0, 0, parts=4), at=0)
    assert _pieces(merge)[0].replaces
    busy = Bench()
    busy.step(_seen(0, 10, parts=7), at=0)
    (sent,) = busy.step(upload_events.TimePassed(), at=250)
    assert not _pieces(sent)[0].replaces, "its producer waits"
    (merge,) = Bench().step(_seen(0, 10, parts=8), at=0)
    assert _pieces(merge)[0].replaces, "the number of parts is bounded"


def _cut(effect: upload_events.UploaderEffect, shard: int, end_offset: int, size: int) -> upload_events.RangesCut:
    return upload_events.RangesCut(_task(effect), ((_key(shard), end_offset, size),))


def _moved(shard: int, offset: int, unsent: int) -> upload_events.Moved:
    return upload_events.Moved(_key(shard), offset, (), unsent, is_ours=True)


def _void(effect: upload_events.UploaderEffect, *shards: int) -> upload_events.TaskEnded:
    return upload_events.TaskEnded(_task(effect), tuple(upload_events.Void(_key(shard)) for shard in shards or (0,)))


def _two_in_flight() -> tuple[Bench, list[upload_events.UploaderEffect]]:
    """Offsets 0 to 10, and 10 to 15, of one shard."""
    bench = Bench()
    bench.step(_seen(0, 10), at=0)
    sent = bench.step(upload_events.TimePassed(), at=250)
    bench.step(_cut(sent[0], 0, 10, 10), at=255)
    bench.step(upload_events.CommittedGrew(_key(0), 15), at=260)
    sent += bench.step(upload_events.TimePassed(), at=510)
    bench.step(_cut(sent[1], 0, 15, 5), at=515)
    return bench, sent


def test_what_came_since_a_range_was_read_goes_after_its_own_interval_and_commits_after_it() -> None:
    bench, sent = _two_in_flight()
    (second,) = _pieces(sent[1])
    assert (second.base_offset, second.max_bytes) == (10, 5)
    assert isinstance(sent[1], upload_events.SendBundle) and sent[1].after == (_task(sent[0]),)
    assert bench.step(upload_events.TaskEnded(_task(sent[0]), (_moved(0, 10, 5),)), at=600) == []
    assert bench.step(upload_events.TaskEnded(_task(sent[1]), (_moved(0, 15, 0),)), at=700) == []
    assert bench.machine.is_settled() and bench.machine.unstored_bytes == 0


def test_nothing_of_a_shard_begins_before_its_range_was_read() -> None:
    bench = Bench()
    bench.step(_seen(0, 10), at=0)
    (first,) = bench.step(upload_events.TimePassed(), at=250)
    assert bench.step(upload_events.CommittedGrew(_key(0), 15), upload_events.TimePassed(), at=600) == []
    (second,) = bench.step(_cut(first, 0, 10, 10), upload_events.TimePassed(), at=860)
    assert [piece.base_offset for piece in _pieces(second)] == [10]


def test_what_a_read_left_behind_goes_at_once_for_it_has_waited() -> None:
    bench = Bench()
    bench.step(_seen(0, 10), at=0)
    (first,) = bench.step(upload_events.TimePassed(), at=250)
    (second,) = bench.step(_cut(first, 0, 6, 6), at=255)
    (piece,) = _pieces(second)
    assert (piece.base_offset, piece.max_bytes) == (6, 4)


def test_what_follows_a_range_that_was_not_committed_goes_once_more_with_it() -> None:
    bench, sent = _two_in_flight()
    refused = upload_events.TaskFailed(_task(sent[0]), upload_events.TaskFailure.DOUBTFUL, "no answer", 0.0)
    assert bench.step(refused, at=600) == [], "the range behind it is on its way still"
    (again,) = bench.step(_void(sent[1]), at=610)
    (piece,) = _pieces(again)
    assert (piece.base_offset, piece.max_bytes) == (0, 15)


def test_what_follows_a_range_that_got_no_answer_from_the_meta_service_does_not_end_the_pause() -> None:
    bench, sent = _two_in_flight()
    away = upload_events.TaskFailed(_task(sent[0]), upload_events.TaskFailure.META_AWAY, "no answer", 0.9)
    (report,) = bench.step(away, at=600)
    assert isinstance(report, upload_events.ReportStore) and report.is_away
    assert bench.step(_void(sent[1]), at=601) == [], "it was put, but the meta service was not asked"
    opens_ms = bench.machine.next_wake_ms(601)
    assert opens_ms is not None and opens_ms > 601
    (again,) = bench.step(upload_events.TimePassed(), at=opens_ms)
    assert [(piece.base_offset, piece.max_bytes) for piece in _pieces(again)] == [(0, 15)]


def test_a_segment_at_fault_each_time_shares_no_bundle_also_when_a_range_followed_it() -> None:
    bench = Bench()
    bench.step(_seen(0, 10), _seen(1, 10), at=0)
    (first,) = bench.step(upload_events.TimePassed(), at=250)
    ends = upload_events.RangesCut(_task(first), ((_key(0), 10, 10), (_key(1), 10, 10)))
    grown = [upload_events.CommittedGrew(_key(shard), 15) for shard in (0, 1)]
    bench.step(ends, *grown, at=260)
    (second,) = bench.step(upload_events.TimePassed(), at=510)
    bench.step(upload_events.TaskFailed(_task(first), upload_events.TaskFailure.FAULT, "a bug", 0.0), at=600)
    bench.step(_void(second, 0, 1), at=610)
    again: list[upload_events.UploaderEffect] = []
    while not again and (wake_ms := bench.machine.next_wake_ms(610)) is not None:
        again = bench.step(upload_events.TimePassed(), at=wake_ms)
    assert _shards(again) == [[0], [1]]


def test_after_a_failed_range_the_next_begins_at_the_commit_offset_also_while_parts_are_merged() -> None:
    bench = Bench()
    bench.step(_seen(0, 10, parts=7), at=0)
    (append,) = bench.step(upload_events.TimePassed(), at=250)
    bench.step(_cut(append, 0, 17, 10), at=255)
    rewritten = tuple(RemotePart("bundles/1/1/1.1.bundle", 0, 100, at, at + 1) for at in range(2))
    (merge,) = bench.step(upload_events.RewriteRequested(_key(0), rewritten), upload_events.TimePassed(), at=260)
    assert _pieces(merge)[0].replaces
    failed = upload_events.TaskFailed(_task(append), upload_events.TaskFailure.DOUBTFUL, "no answer", 0.0)
    (again,) = bench.step(failed, at=300)
    assert [piece.base_offset for piece in _pieces(again)] == [7], "what came back is not in the store"


def test_a_merge_that_hangs_holds_up_no_range_once_what_followed_a_failed_one_is_back() -> None:
    bench = Bench()
    bench.step(_seen(0, 10, parts=7), at=0)
    (first,) = bench.step(upload_events.TimePassed(), at=250)
    grown = upload_events.CommittedGrew(_key(0), 15)
    bench.step(_cut(first, 0, 17, 10), grown, at=255)
    (second,) = bench.step(upload_events.TimePassed(), at=505)
    rewritten = tuple(RemotePart("bundles/1/1/1.1.bundle", 0, 100, at, at + 1) for at in range(2))
    cut = _cut(second, 0, 22, 5)
    (merge,) = bench.step(cut, upload_events.RewriteRequested(_key(0), rewritten), at=510)
    assert _pieces(merge)[0].replaces
    refused = upload_events.TaskFailed(_task(first), upload_events.TaskFailure.DOUBTFUL, "no answer", 0.0)
    assert bench.step(refused, at=600) == []
    (again,) = bench.step(_void(second), at=610)
    assert [(piece.base_offset, piece.max_bytes) for piece in _pieces(again)] == [(7, 15)]


def test_nothing_continues_a_range_whose_lock_was_lost() -> None:
    bench = Bench()
    bench.step(_seen(0, 10), at=0)
    (first,) = bench.step(upload_events.TimePassed(), at=250)
    bench.step(_cut(first, 0, 10, 10), upload_events.CommittedGrew(_key(0), 15), at=255)
    bench.step(upload_events.LockLost(), upload_events.LockGained(2), at=260)
    assert bench.step(upload_events.TimePassed(), at=600) == [], "the range before it can no longer be committed"
    fenced = upload_events.TaskFailed(_task(first), upload_events.TaskFailure.LOCK_LOST, "fenced", 0.0)
    (again,) = bench.step(fenced, at=610)
    assert [(piece.base_offset, piece.max_bytes) for piece in _pieces(again)] == [(0, 15)]


def test_a_range_that_fails_before_the_one_in_front_of_it_ended_goes_again_from_where_that_one_ends() -> None:
    bench, sent = _two_in_flight()
    failed = upload_events.TaskFailed(_task(sent[1]), upload_events.TaskFailure.DOUBTFUL, "no answer", 0.0)
    (again,) = bench.step(failed, at=600)
    (piece,) = _pieces(again)
    assert (piece.base_offset, piece.max_bytes) == (10, 5)
    assert isinstance(again, upload_events.SendBundle) and again.after == (_task(sent[0]),)


def test_four_ranges_of_a_shard_are_on_their_way_at_most() -> None:
    bench, at, sent = Bench(), 0, []
    for number in range(1, 7):
        unsent = upload_events.CommittedGrew(_key(0), 10 * number)
        bench.step(*([_seen(0, 10)] if number == 1 else [unsent]), at=at)
        sent += bench.step(upload_events.TimePassed(), at=at + 250)
        if number == len(sent):
            bench.step(_cut(sent[-1], 0, 10 * number, 10), at=at + 250)
        at += 250
    assert len(sent) == 4
    (rest,) = bench.step(
        upload_events.TaskEnded(_task(sent[0]), (_moved(0, 10, 50),)), upload_events.TimePassed(), at=at
    )
    assert [(piece.base_offset, piece.max_bytes) for piece in _pieces(rest)] == [(40, 20)]


def test_parts_that_merge_keep_no_producer_waiting() -> None:
    bench = Bench()
    (merge,) = bench.step(_seen(0, 10, parts=8), at=0)
    (append,) = bench.step(upload_events.TimePassed(), at=250)
    assert _pieces(merge)[0].replaces and _pieces(append)[0].base_offset == 8
    assert isinstance(append, upload_events.SendBundle) and append.after == (_task(merge),)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 900), st.integers(0, 400)), max_size=40))
def test_what_is_written_begins_its_way_up_within_the_interval(writes: list[tuple[int, int, int]]) -> None:
    bench, now_ms = Bench(), 0
    since: dict[int, int] = {}
    unsent = dict.fromkeys(range(5), 0)

    def take(effects: list[upload_events.UploaderEffect], at: int) -> None:
        """The store answers at once."""
        while effects:
            effect = effects.pop()
            outcomes = []
            for piece in _pieces(effect):
                shard = piece.key.shard
                assert at - since.pop(shard) <= 250
                unsent[shard] -= piece.max_bytes
                if unsent[shard]:
                    since[shard] = at
                outcomes.append(upload_events.Moved(piece.key, piece.base_offset + 1, (), unsent[shard], is_ours=True))
            effects += bench.step(upload_events.TaskEnded(_task(effect), tuple(outcomes)), at=at)

    for shard in range(5):
        bench.step(_seen(shard))
    for shard, size, wait_ms in writes:
        unsent[shard] += size
        since.setdefault(shard, now_ms)
        take(bench.step(upload_events.CommittedGrew(_key(shard), unsent[shard]), at=now_ms), now_ms)
        until_ms = now_ms + wait_ms
        while (wake_ms := bench.machine.next_wake_ms(now_ms)) is not None and wake_ms <= until_ms:
            now_ms = wake_ms
            take(bench.step(upload_events.TimePassed(), at=now_ms), now_ms)
        now_ms = until_ms
