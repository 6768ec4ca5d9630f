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
