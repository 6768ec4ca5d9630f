"""A shard's files drawn as text, metadata, checkpoints and an object store beside them: a shell around the machines of
a restart without any bytes. Stories and property tests share it.

A file is one character per batch; each batch has one record and takes `BATCH_BYTES`:

    .  whole          ~  without records, in the place of an offset that was given up
    x  damaged, its header is readable       0  zeros: never written, or gone       /  torn; the last character only

The state of producers at an offset is one producer that appended the last record before it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stratalog.machines.restart import restart_events, shard_healing
from stratalog.machines.restart.shard_restart import ShardRestart
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import NO_PRODUCERS, ProducerSnapshot, ProducerTally
from stratalog.model.segment import RemoteCopy, RemoteState, SealRecord, Segment, SegmentState
from support.restart_steps import RestartSteps, Work
from support.restart_words import BATCH_BYTES, healing_in_words, in_words

NODE = 1
WHOLE = ".~"
TALLY = ProducerTally(1, b"t", 10, 0)
TOPIC = uuid.UUID(int=7)


class PowerCut(Exception):
    """The world ends between two steps."""


def key_of(epoch: int, base_offset: int) -> SegmentKey:
    return SegmentKey(TOPIC, 0, epoch, base_offset)


def producers_at(offset: int) -> restart_events.Producers:
    return (ProducerSnapshot(7, 0, offset, ()),) if offset > 0 else ()


def segment_of(
    key: SegmentKey,
    state: SegmentState,
    end_offset: int | None = None,
    *,
    commit_offset: int = -1,
    is_here: bool = True,
    is_stored: bool = False,
) -> Segment:
    seal = None
    if state is SegmentState.SEALED:
        assert end_offset is not None
        seal = SealRecord(
            key.epoch,
            key.base_offset,
            end_offset,
            -1,
            -1,
            0,
            b"",
            TALLY if end_offset > 0 else NO_PRODUCERS,
            (NODE,),
            0,
        )
    remote = RemoteCopy(
        RemoteState.COMPLETE if is_stored else RemoteState.PARTIAL if commit_offset > 0 else RemoteState.NONE,
        commit_offset,
    )
    local_nodes = (NODE,) if is_here and seal is not None else ()
    return Segment(key, state, NODE, (NODE,), (NODE,), 0, 0, end_offset, seal, local_nodes, remote)


@dataclass
class DrawnFile:
    cells: str
    is_headless: bool = False
    is_foreign: bool = False
    is_unreadable: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.cells) * BATCH_BYTES - (BATCH_BYTES // 2 if self.cells.endswith("/") else 0)

    def whole_from(self, cell: int) -> int:
        """The first cell, from `cell` on, that is not a whole batch."""
        while cell < len(self.cells) and self.cells[cell] in WHOLE:
            cell += 1
        return cell

    def put(self, cell: int, cells: str) -> None:
        drawn = self.cells.ljust(cell, "0")
        self.cells = drawn[:cell] + cells + drawn[cell + len(cells) :]


@dataclass(repr=False)
class World(RestartSteps):
    """What survives a life, and what happens in one. `said` takes what each step did, in words."""

    segments: list[Segment] = field(default_factory=list)
    log_start: int = 0
    is_topic_deleted: bool = False
    is_fsync: bool = False
    may_give_up: bool = False
    files: dict[SegmentKey, DrawnFile] = field(default_factory=dict)
    kept: dict[SegmentKey, list[str]] = field(default_factory=dict)
    """Under other names, for a human."""
    checkpoints: dict[SegmentKey, restart_events.CheckpointClaim] = field(default_factory=dict)
    has_store: bool = True
    is_store_away: bool = False
    store_lacks: set[int] = field(default_factory=set)
    store_garbles: set[int] = field(default_factory=set)
    """Offsets that are damaged the first time they are asked for."""
    failing: set[SegmentKey] = field(default_factory=set)
    """Files that cannot be written to."""
    said: list[str] = field(default_factory=list)
    reads_tables_late: bool = False
    """Tables of producers are read when a pass asks for them."""
    tables: dict[SegmentKey, restart_events.Producers] = field(default_factory=dict)
    """What was read of them."""
    steps_left: int = -1
    """Steps until the power fails; -1: never."""
    steps_done: int = 0

    restart: ShardRestart = field(default_factory=lambda: ShardRestart(NODE, -1))
    outcome: (
        restart_events.Serve
        | restart_events.Heal
        | restart_events.StopShard
        | shard_healing.StopHealing
        | shard_healing.TryAgain
        | None
    ) = None
    missing: restart_events.Heal | None = None
    healing: shard_healing.ShardHealing | None = None

    def __repr__(self) -> str:
        """A drawing, for reading why a property fails."""
        lines = [
            f"{one.epoch} at {one.base_offset} {one.state.value} to {one.end_offset}, stored to "
            f"{one.remote.commit_offset} {one.remote.state.value}{' here' * bool(one.local_nodes)}"
            for one in self.segments
        ]
        lines += [
            f"file {key.epoch} at {key.base_offset}: {file.cells}{' headless' * file.is_headless}"
            f"{' foreign' * file.is_foreign}{' failing' * (key in self.failing)}"
            for key, file in sorted(self.files.items())
        ]
        lines += [f"{key.epoch} {cells} kept aside" for key, kept in sorted(self.kept.items()) for cells in kept]
        lines += [
            f"checkpoint {key.epoch} at {claim.end_offset}, position {claim.position}"
            for key, claim in sorted(self.checkpoints.items())
        ]
        traits = [name for name in ("is_fsync", "may_give_up", "has_store", "is_store_away") if getattr(self, name)]
        lines.append(f"log start {self.log_start}, store lacks {sorted(self.store_lacks)}, {' '.join(traits)}")
        return "\n".join([*lines, *(f"  {said}" for said in self.said)])

    # Lives ------------------------------------------------------------------------------------------------------------
    def start(self, doubted_epoch: int | None = -1) -> None:
        self.restart = ShardRestart(NODE, doubted_epoch)
        self.healing = self.missing = None
        self.list_files()

    def attempt(self) -> None:
        """One of healing, and all that follows from it."""
        assert isinstance(self.outcome, restart_events.Heal | shard_healing.TryAgain) and self.missing is not None, (
            "nothing is missing"
        )
        if self.healing is None:
            self.healing = shard_healing.ShardHealing(self.missing)
        key = self.missing.segment.key
        segment = next((segment for segment in self.segments if segment.key == key), None)
        self.outcome = None
        for _ in self.do_attempt(
            self.healing, shard_healing.AttemptBegun(segment, self.log_start, key in self.files, self.may_give_up)
        ):
            raise AssertionError("nothing is waited for here")

    def list_files(self) -> None:
        sealed = {one.key: producers_at(one.end_offset or 0) for one in self.segments if one.seal is not None}
        tables = self.tables if self.reads_tables_late else sealed
        metadata = restart_events.ShardMetadata(tuple(self.segments), self.log_start, self.is_fsync, dict(tables))
        listed = restart_events.FilesListed(
            None if self.is_topic_deleted else metadata, frozenset(self.files), dict(self.checkpoints)
        )
        self.outcome = None
        self.do_pass(self.restart, listed)

    def begins(self, step: restart_events.RestartStep) -> None:
        self._count()
        self.said.append(in_words(step))

    def begins_healing(self, step: shard_healing.HealingStep) -> None:
        self._count()
        self._say(healing_in_words(step))

    def _count(self) -> None:
        self.steps_done += 1
        if self.steps_left == 0:
            raise PowerCut
        self.steps_left -= 1

    def _say(self, words: str) -> None:
        """What is done again after a pause is one line."""
        last = self.said[-1].split(", times ") if self.said else [""]
        if words == last[0]:
            self.said[-1] = f"{words}, times {int(last[1]) + 1 if len(last) > 1 else 2}"
        elif words != "pause":
            self.said.append(words)

    # Steps of a pass --------------------------------------------------------------------------------------------------
    def owes_seal(self, key: SegmentKey) -> None:
        pass

    def lacks_table(self, segment: Segment) -> None:
        """Read, and listed again with it."""
        assert segment.seal is not None and segment.key not in self.tables, "a table is asked for once"
        self.tables[segment.key] = producers_at(segment.seal.end_offset)
        self.list_files()

    def flush(self, key: SegmentKey) -> restart_events.StepFailed | None:
        return restart_events.StepFailed(key, "input/output error") if key in self.failing else None

    def free(self, key: SegmentKey) -> None:
        del self.files[key]

    def set_aside(self, key: SegmentKey) -> None:
        self.kept.setdefault(key, []).append(self.files.pop(key).cells)

    def make_again(self, key: SegmentKey) -> None:
        self.files[key] = DrawnFile("")

    def is_led_to(self, key: SegmentKey) -> bool:
        file, claim = self.files[key], self.checkpoints[key]
        cells = claim.position // BATCH_BYTES
        return cells == claim.end_offset - key.base_offset and not set(file.cells[:cells]) & set("0/")

    def cut(self, key: SegmentKey, position: int) -> restart_events.StepFailed | None:
        if key in self.failing:
            return restart_events.StepFailed(key, "input/output error")
        self.files[key].cells = self.files[key].cells[: position // BATCH_BYTES]
        return None

    def revoke(self, keys: tuple[SegmentKey, ...]) -> None:
        for key in keys:
            self.checkpoints.pop(key, None)

    def ended(self, how: restart_events.Serve | restart_events.Heal | restart_events.StopShard) -> None:
        self.outcome = how
        if isinstance(how, restart_events.Heal):
            self.missing, self.healing = how, None

    def open_file(self, key: SegmentKey) -> restart_events.RestartEvent:
        file = self.files[key]
        if file.is_unreadable:
            return restart_events.StepFailed(key, "permission denied")
        if file.is_foreign:
            return restart_events.FileDamaged(key, "wrong identity")
        return restart_events.FileOpened(key, file.size_bytes, has_header=not file.is_headless)

    def scan(
        self, key: SegmentKey, from_position: int, producers: restart_events.Producers
    ) -> restart_events.FileScanned:
        file, claim = self.files[key], self.checkpoints.get(key)
        first = from_position // BATCH_BYTES
        # A checkpoint at a wrong place: its offset does not follow there, so no batch does.
        is_wrong = from_position > 0 and claim is not None and claim.end_offset != key.base_offset + first
        last = first if is_wrong else file.whole_from(first)
        end_offset = key.base_offset + last
        if is_wrong and claim is not None:
            end_offset = claim.end_offset
        records = [cell for cell in range(first, last) if file.cells[cell] == "."]
        at_end = producers_at(key.base_offset + records[-1] + 1) if records else producers
        return restart_events.FileScanned(key, last * BATCH_BYTES, end_offset, at_end)

    # Steps of healing -------------------------------------------------------------------------------------------------
    def refill(self, segment: Segment, end_offset: int) -> Work:
        return at_once(self._refill(segment, end_offset))

    def ask_store(self, segment: Segment, ranges: tuple[shard_healing.OffsetRange, ...]) -> Work:
        if self.is_store_away and self.has_store and ranges:
            return at_once(shard_healing.AttemptFailed("connection refused", is_final=False))
        now = next((one for one in self.segments if one.key == segment.key), None)
        return at_once(shard_healing.StoreAnswered(tuple(self._missed(ranges)), now, self.may_give_up))

    def pause(self) -> Work:
        return at_once(None)

    def end_segment(self, key: SegmentKey, end_offset: int) -> Work:
        old = self.segments[-1]
        assert old.key == key
        self.segments[-1] = replace(old, state=SegmentState.SEALING, end_offset=end_offset)
        self.segments.append(segment_of(key_of(key.epoch + 1, end_offset), SegmentState.ACTIVE))
        return at_once(None)

    def drop_segment(self, key: SegmentKey, log_start: int) -> Work:
        self.segments = [one for one in self.segments if one.end_offset is None or one.end_offset > log_start]
        return at_once(None)

    def healing_ended(self, how: shard_healing.TryAgain | shard_healing.StopHealing) -> None:
        self.outcome = how

    def _refill(self, segment: Segment, end_offset: int) -> shard_healing.HealingEvent:
        key = segment.key
        file, committed_end = self.files[key], segment.remote.commit_offset
        while True:
            at = key.base_offset + file.whole_from(0)
            if at >= end_offset:
                return shard_healing.FileRefilled(at)
            if at >= committed_end:
                return shard_healing.FileRefilled(at, shard_healing.Obstacle.NOT_COMMITTED)
            if not self.has_store:
                return shard_healing.FileRefilled(at, shard_healing.Obstacle.NO_STORE)
            if self.is_store_away:
                return shard_healing.AttemptFailed("connection refused", is_final=False)
            if at in self.store_lacks or at in self.store_garbles:
                self.store_garbles.discard(at)
                return shard_healing.FileRefilled(at, shard_healing.Obstacle.NOT_THERE, "no such object")
            file.put(at - key.base_offset, ".")

    def _missed(self, ranges: tuple[shard_healing.OffsetRange, ...]) -> Iterator[shard_healing.OffsetRange]:
        """Each offset is a part of its own."""
        for begin, end in ranges:
            for offset in range(begin, end):
                if offset in self.store_lacks or not self.has_store:
                    yield (offset, offset + 1)

    def give_up(self, key: SegmentKey, holes: tuple[shard_healing.OffsetRange, ...], end_offset: int) -> None:
        file, first = self.files[key], holes[0][0] - key.base_offset
        self.kept.setdefault(key, []).append(file.cells[first:])
        given_up = {offset for begin, end in holes for offset in range(begin, end)}
        cells = ("~" if offset in given_up else "." for offset in range(holes[0][0], end_offset))
        file.cells = file.cells[:first] + "".join(cells)


def at_once(answer: shard_healing.HealingEvent | None) -> Work:
    """Nothing is waited for here."""
    return answer
    yield
