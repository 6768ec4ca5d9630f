"""The uploader machine against a model: whatever the answers, nothing is sent twice at a time, nothing is forgotten."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.machines.tiering import upload_events
from stratalog.machines.tiering.uploader import Uploader
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart

LIMITS = upload_events.UploadLimits(
    chunk_bytes=5_000, bundle_bytes=20_000, in_flight_bytes=40_000, max_requests=6, interval_ms=100, merge_parts=3,
    backoff_ms=10, direct_interval_ms=20, direct_merge_parts=3, backoff_cap_ms=100, hold_ms=50,
)  # fmt: skip


@dataclass
class Model:
    """One segment: an offset is a byte, so sizes and offsets are the same."""

    key: SegmentKey
    end: int = 0
    is_sealed: bool = False
    is_gone: bool = False
    is_complete: bool = False
    parts: list[RemotePart] = field(default_factory=list)
    is_mounted: bool = False
    """In a retired node's directory, which may be away."""
    away: str | None = None
    is_direct: bool = False
    interval_ms: int | None = None
    """What its topic says."""

    @property
    def committed(self) -> int:
        return self.parts[-1].end_offset if self.parts else 0

    def moved(self, is_ours: bool = True) -> upload_events.Moved:
        return upload_events.Moved(self.key, self.committed, tuple(self.parts), self.end - self.committed, is_ours)

    def seen(self) -> upload_events.SegmentSeen:
        end = self.end if self.is_sealed else None
        unsent = self.end - self.committed
        directories = () if self.away is not None else (self.key.shard // 2,)
        where = {"directories": directories if self.is_mounted else None, "away": self.away}
        return upload_events.SegmentSeen(
            self.key,
            self.is_sealed,
            end,
            self.committed,
            tuple(self.parts),
            True,
            unsent,
            is_direct=self.is_direct,
            interval_ms=self.interval_ms,
            **where,
        )


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = Uploader(LIMITS, lambda key: key.startswith("b"))
        self.models = [Model(SegmentKey(UUID(int=1), shard, 0, 0)) for shard in range(4)]
        self.models += [
            Model(SegmentKey(UUID(int=1), shard, 0, 0), end=size, is_sealed=True, is_mounted=True)
            for shard, size in ((4, 12_000), (5, 300), (6, 40_000))
        ]
        self.models += [Model(SegmentKey(UUID(int=1), shard, 0, 0), is_direct=True) for shard in (7, 8)]
        self.uncut: set[int] = set()
        """Tasks in flight that have not read their ranges."""
        self.ends: dict[tuple[int, SegmentKey], int] = {}
        """Where the ranges of the others end."""
        self.by_key = {model.key: model for model in self.models}
        self.tasks: dict[int, upload_events.SendChunk | upload_events.SendBundle | upload_events.Publish] = {}
        self.now_ms = 0
        self.objects = 0
        self.has_lock = False
        self.fenced: set[int] = set()
        """Tasks that began under a lock that was lost since."""
        self.step_machine(*(model.seen() for model in self.models))

    def step_machine(self, *events: upload_events.UploaderEvent) -> None:
        for effect in self.machine.step_all(events, self.now_ms):
            match effect:
                case upload_events.SendChunk(task) | upload_events.SendBundle(task) | upload_events.Publish(task):
                    assert self.has_lock, "nothing begins without the lock"
                    assert not any(self.is_read_there(piece) and self.away(piece) for piece in pieces_of(effect))
                    for piece in pieces_of(effect):
                        self.check_beginning(piece)
                    self.tasks[task] = effect
                    self.uncut.add(task)
                case upload_events.CancelTask(task):
                    self.cancelled(task)
                case _:
                    pass
        self.machine.check_invariants()
        busy = [piece.key for effect in self.tasks.values() for piece in pieces_of(effect)]
        live = [key for key in busy if not self.by_key[key].is_gone and not self.by_key[key].is_direct]
        assert len(live) == len(set(live)), "one range in flight per segment"
        for model in self.models[7:]:
            if not model.is_gone:
                self.check_flights(model)
        pieces = [piece for effect in self.tasks.values() for piece in pieces_of(effect)]
        assert sum(map(self.is_read_there, pieces)) <= LIMITS.mounted_requests, "few are read in directories at a time"

    def check_flights(self, model: Model) -> None:
        """Ranges of a Direct segment: few, none twice, and each continues one that was read."""
        mine = [(task, p) for task, effect in self.tasks.items() for p in pieces_of(effect) if p.key == model.key]
        appends = sorted((p.base_offset, task) for task, p in mine if p.max_bytes and not p.replaces)
        assert len(mine) <= 4 and sum(1 for _, piece in mine if piece.replaces) <= 1
        for (_, task), (after, later) in pairwise(appends):
            assert self.ends[task, model.key] <= after and task < later
            assert task in getattr(self.tasks[later], "after", ())

    def check_beginning(self, piece: upload_events.Piece) -> None:
        """New data of a Direct segment begin where they can be committed if all goes well from now on."""
        model = self.by_key[piece.key]
        if not model.is_direct or model.is_gone or piece.replaces or not piece.max_bytes:
            return
        reached = {model.committed}
        for task in sorted(self.tasks.keys() - self.fenced):
            mine = [p for p in pieces_of(self.tasks[task]) if p.key == model.key and not p.replaces]
            reached |= {self.ends[task, p.key] for p in mine if p.base_offset in reached and (task, p.key) in self.ends}
        assert piece.base_offset in reached, f"it continues nothing: {piece}"

    def cut(self, _: int) -> None:
        if not self.uncut & self.tasks.keys():
            return
        task = self.rng.choice(sorted(self.uncut & self.tasks.keys()))
        self.uncut.discard(task)
        appends = [p for p in pieces_of(self.tasks[task]) if self.by_key[p.key].is_direct and not p.replaces]
        read = ((p, min(p.base_offset + p.max_bytes, self.by_key[p.key].end)) for p in appends)
        ends = tuple((p.key, end, end - p.base_offset) for p, end in read)
        self.ends.update(((task, key), end) for key, end, _ in ends)
        self.step_machine(upload_events.RangesCut(task, ends))

    def write(self, number: int, size: int) -> None:
        """To a Direct segment, and its upload begins."""
        self.grow(7 + number % 2, size)
        self.time(20)
        self.cut(0)

    def is_read_there(self, piece: upload_events.Piece) -> bool:
        return self.by_key[piece.key].is_mounted and piece.max_bytes > 0 and not piece.replaces

    def away(self, piece: upload_events.Piece) -> str | None:
        return self.by_key[piece.key].away

    def cancelled(self, task: int) -> None:
        del self.tasks[task]
        self.step_machine(upload_events.TaskFailed(task, upload_events.TaskFailure.CANCELLED, "", 0.0))

    # What may happen ------------------------------------------------------------------------------------------------
    def grow(self, number: int, size: int) -> None:
        model = self.models[number]
        if not model.is_sealed and not model.is_gone:
            model.end += size
            self.step_machine(upload_events.CommittedGrew(model.key, model.end - model.committed))

    def seal(self, number: int) -> None:
        model = self.models[number]
        if not model.is_gone:
            model.is_sealed = True
            self.step_machine(model.seen())

    def delete(self, number: int) -> None:
        self.models[number].is_gone = True
        self.step_machine(upload_events.SegmentGone(self.models[number].key))

    def read_there(self, number: int, is_read: bool) -> None:
        model = self.models[4 + number % 3]
        model.away = None if is_read else "nobody reads it"
        if not model.is_gone and not model.is_complete:
            self.step_machine(model.seen())

    def interval(self, number: int, interval_ms: int | None) -> None:
        model = self.models[number]
        model.interval_ms = interval_ms
        if not model.is_gone and not model.is_complete:
            self.step_machine(model.seen())

    def rewrite(self, number: int) -> None:
        model = self.models[number]
        some = tuple(part for part in model.parts if part.object_key.startswith("b") and self.rng.random() < 0.5)
        self.step_machine(upload_events.RewriteRequested(model.key, some))

    def lock(self, is_held: bool) -> None:
        self.has_lock = is_held
        if not is_held:
            self.fenced.update(self.tasks)
        self.step_machine(upload_events.LockGained(1) if is_held else upload_events.LockLost())

    def time(self, ms: int) -> None:
        self.now_ms += ms
        self.step_machine(upload_events.TimePassed())

    def answer(self, failure: upload_events.TaskFailure | None, is_odd: bool) -> None:
        if not self.tasks:
            return
        task = self.rng.choice(sorted(self.tasks))
        if failure is None:
            # It commits after those that it continues.
            task = min((task, *(one for one in getattr(self.tasks[task], "after", ()) if one in self.tasks)))
            while earlier := [one for one in getattr(self.tasks[task], "after", ()) if one in self.tasks]:
                task = min(earlier)
        effect = self.tasks.pop(task)
        if failure is not None:
            if failure is upload_events.TaskFailure.LOCK_LOST:
                failure = upload_events.TaskFailure.DOUBTFUL
            self.step_machine(upload_events.TaskFailed(task, failure, "why not", self.rng.random()))
            return
        self.objects += 1
        if isinstance(effect, upload_events.Publish):
            outcomes: tuple[upload_events.PieceOutcome, ...] = (self.publish(effect),)
        else:
            name = f"{'b' if isinstance(effect, upload_events.SendBundle) else 'c'}{self.objects}"
            outcomes = tuple(
                self.outcome(piece, name, is_odd, self.ends.get((task, piece.key))) for piece in pieces_of(effect)
            )
        self.step_machine(upload_events.TaskEnded(task, outcomes))

    def publish(self, effect: upload_events.Publish) -> upload_events.PieceOutcome:
        model = self.by_key[effect.key]
        if not model.is_gone:
            assert model.is_sealed and model.committed == model.end
            assert effect.parts == tuple(model.parts)
            assert not any(part.object_key.startswith("b") for part in effect.parts), "all parts are at home"
            model.is_complete = True
        return upload_events.Gone(effect.key)

    def outcome(
        self, piece: upload_events.Piece, name: str, is_odd: bool, read_end: int | None
    ) -> upload_events.PieceOutcome:
        model = self.by_key[piece.key]
        if model.is_gone:
            return upload_events.Gone(piece.key)
        if not piece.replaces and piece.base_offset > model.committed:
            assert model.is_direct, "parts follow one another without a gap"
            return upload_events.Void(piece.key)
        if is_odd and read_end is not None and not piece.replaces:
            return model.moved(is_ours=False)
        if is_odd and not piece.replaces and self.rng.random() < 0.3:
            return upload_events.TooLarge(piece.key, self.rng.randint(1, model.end - model.committed))
        if is_odd and self.rng.random() < 0.5:
            return self.rng.choice(
                [
                    upload_events.NothingThere(piece.key, model.end - model.committed),
                    upload_events.Unreadable(piece.key, "bad CRC", is_final=False),
                    model.moved(is_ours=False),
                ]
            )
        if piece.replaces:
            at = model.parts.index(piece.replaces[0])
            assert tuple(model.parts[at : at + len(piece.replaces)]) == piece.replaces
            size = sum(part.size_bytes for part in piece.replaces)
            new = RemotePart(name, 0, size, piece.replaces[0].base_offset, piece.replaces[-1].end_offset)
            model.parts[at : at + len(piece.replaces)] = [new]
        else:
            assert piece.base_offset == model.committed, "parts follow one another without a gap"
            assert 0 < piece.max_bytes <= model.end - model.committed or model.is_direct
            end = read_end or min(piece.base_offset + piece.max_bytes, model.end)
            model.parts.append(RemotePart(name, 0, end - piece.base_offset, piece.base_offset, end))
        return model.moved()

    def drain(self) -> None:
        """From now on all goes well."""
        for number in range(3):
            self.read_there(number, True)
        self.lock(True)
        for _ in range(3_000):
            if self.tasks:
                self.answer(None, is_odd=False)
                continue
            wake_ms = self.machine.next_wake_ms(self.now_ms)
            if wake_ms is None:
                break
            self.now_ms = max(self.now_ms, wake_ms)
            self.step_machine(upload_events.TimePassed())
        else:
            raise AssertionError(f"it never ends: {self.machine.describe(self.now_ms)}")


def pieces_of(
    effect: upload_events.SendChunk | upload_events.SendBundle | upload_events.Publish,
) -> tuple[upload_events.Piece, ...]:
    match effect:
        case upload_events.SendChunk(_, piece):
            return (piece,)
        case upload_events.SendBundle(_, pieces):
            return pieces
        case upload_events.Publish(_, key):
            return (upload_events.Piece(key, 0, 0),)


numbers = st.integers(0, 8)
steps = st.one_of(
    st.tuples(st.just("grow"), numbers, st.sampled_from([1, 50, 900, 4_000, 30_000])),
    st.tuples(st.just("grow"), numbers, st.sampled_from([1, 50, 900])),
    st.tuples(st.just("answer"), st.just(None), st.booleans()),
    st.tuples(st.just("answer"), st.just(None), st.just(False)),
    st.tuples(st.just("answer"), st.sampled_from(list(upload_events.TaskFailure)), st.just(False)),
    st.tuples(st.just("time"), st.integers(1, 150)),
    st.tuples(st.just("time"), st.just(100)),
    st.tuples(st.just("seal"), numbers),
    st.tuples(st.just("delete"), numbers),
    st.tuples(st.just("rewrite"), numbers),
    st.tuples(st.just("lock"), st.booleans()),
    st.tuples(st.just("read_there"), numbers, st.booleans()),
    st.tuples(st.just("cut"), st.just(0)),
    st.tuples(st.just("cut"), st.just(0)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("interval"), numbers, st.sampled_from([1, 30, 90, 100, 1_000, None])),
)


writes = st.tuples(st.just("write"), st.integers(0, 1), st.sampled_from([1, 50, 900, 7_000]))
answers = st.tuples(st.just("answer"), st.sampled_from([None, None, *upload_events.TaskFailure]), st.booleans())


@given(plot=st.lists(steps, max_size=120), seed=st.integers(0, 1_000))
@settings(max_examples=300, deadline=None)
def test_whatever_is_answered_all_that_is_committed_gets_there_and_the_machine_comes_to_rest(
    plot: list[tuple[str, ...]], seed: int
) -> None:
    """F8, F38, F77, F80, F84 as plain events."""
    play(plot, seed)


@given(plot=st.lists(st.one_of(writes, writes, answers, steps), min_size=30, max_size=90), seed=st.integers(0, 1_000))
@settings(max_examples=150, deadline=None)
def test_ranges_of_direct_segments_that_are_on_their_way_together_commit_in_order(
    plot: list[tuple[str, ...]], seed: int
) -> None:
    play(plot, seed)


def play(plot: list[tuple[str, ...]], seed: int) -> None:
    world = World(seed)
    world.lock(True)
    for name, *details in plot:
        if name == "flush":
            world.step_machine(upload_events.FlushRequested())
        else:
            getattr(world, name)(*details)
    world.drain()
    for model in world.models:
        if not model.is_gone:
            assert model.committed == model.end
            assert model.is_complete == model.is_sealed
    assert world.machine.is_settled()
    assert world.machine.describe(world.now_ms).bytes_in_flight == 0
    assert world.machine.describe(world.now_ms).oldest_unsent_ms == 0
