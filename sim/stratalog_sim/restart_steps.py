"""What a shell does for the restart and the healing of a shard: each step of `machines.restart.shard_restart` and
`machines.restart.shard_healing` in the order asked, over operations on files that somebody else has.

The simulator has them on its disk, in simulated time; the stories and properties of both machines on files drawn as
text, at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, TypeAlias, assert_never

from stratalog.machines.restart.restart_events import (
    CheckpointTraced,
    ConfirmRoll,
    CutTail,
    FileScanned,
    FilesListed,
    FlushFile,
    FreeLeftover,
    Heal,
    MakeAnew,
    NoteMissing,
    OpenFile,
    Producers,
    ReadProducers,
    RestartEvent,
    RestartStep,
    RevokeCheckpoints,
    RevokeStale,
    ScanFile,
    SealEnded,
    Serve,
    SetAside,
    StepFailed,
    StopShard,
    TakeSealed,
    TraceCheckpoint,
)
from stratalog.machines.restart.shard_healing import (
    AskStore,
    AttemptBegun,
    AttemptFailed,
    DropSegment,
    EndSegment,
    GiveUp,
    HealingEvent,
    HealingStep,
    ListFiles,
    OffsetRange,
    Pause,
    Refill,
    ShardHealing,
    StopHealing,
    TryAgain,
)
from stratalog.machines.restart.shard_restart import ShardRestart
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment

Work: TypeAlias = Generator[Any, Any, HealingEvent | None]
"""May wait for something; its result answers the step."""


class RestartSteps(ABC):
    # A pass ---------------------------------------------------------------------------------------------------------
    def do_pass(self, restart: ShardRestart, listed: FilesListed) -> None:
        """Until the machine wants nothing more; how it ends `ended` is told."""
        event: RestartEvent | None = listed
        while event is not None:
            steps, event = restart.step(event), None
            restart.check_invariants()
            for number, step in enumerate(steps, 1):
                self.begins(step)
                event = self.do_step(step)
                if event is not None:
                    is_last = number == len(steps) or isinstance(event, StepFailed)
                    assert is_last, f"{steps[number:]} come behind {step}, which is answered"
                    break

    def do_step(self, step: RestartStep) -> RestartEvent | None:
        match step:
            case TakeSealed() | NoteMissing() | ConfirmRoll():
                return None
            case SealEnded(key):
                self.owes_seal(key)
            case FreeLeftover(key):
                self.free(key)
            case OpenFile(key):
                return self.open_file(key)
            case SetAside(key):
                self.set_aside(key)
            case MakeAnew(key):
                return self.make_anew(key)
            case ScanFile(key, from_position, producers):
                return self.scan(key, from_position, producers)
            case TraceCheckpoint(key):
                return CheckpointTraced(key, self.is_led_to(key))
            case CutTail(key, position):
                return self.cut(key, position)
            case FlushFile(key):
                return self.flush(key)
            case RevokeCheckpoints(keys) | RevokeStale(keys):
                self.revoke(keys)
            case ReadProducers(segment):
                self.lacks_table(segment)
            case Serve() | Heal() | StopShard():
                self.ended(step)
            case _:
                assert_never(step)
        return None

    # An attempt to heal ---------------------------------------------------------------------------------------------
    def do_attempt(self, healing: ShardHealing, begun: AttemptBegun) -> Generator[Any, Any, None]:
        event: HealingEvent | None = begun
        while event is not None:
            steps, event = healing.step(event), None
            for number, step in enumerate(steps, 1):
                self.begins_healing(step)
                event = yield from self.heal_step(step)
                if event is not None:
                    assert number == len(steps) or isinstance(event, AttemptFailed), f"{step} is answered"
                    break

    def heal_step(self, step: HealingStep) -> Work:
        match step:
            case MakeAnew(key):
                failed = self.make_anew(key)
                return None if failed is None else AttemptFailed(failed.why, is_final=False)
            case Refill(segment, end_offset):
                return (yield from self.refill(segment, end_offset))
            case AskStore(segment, ranges):
                return (yield from self.ask_store(segment, ranges))
            case Pause():
                yield from self.pause()
            case GiveUp(segment, holes, end_offset):
                self.give_up(segment.key, holes, end_offset)
            case RevokeCheckpoints(keys):
                self.revoke(keys)
            case EndSegment(key, end_offset):
                return (yield from self.end_segment(key, end_offset))
            case DropSegment(key, log_start):
                return (yield from self.drop_segment(key, log_start))
            case ListFiles():
                self.list_files()
            case TryAgain() | StopHealing():
                self.healing_ended(step)
            case _:
                assert_never(step)
        return None

    # Who has the files ----------------------------------------------------------------------------------------------
    @abstractmethod
    def begins(self, step: RestartStep) -> None:
        """Before each step of a pass."""

    @abstractmethod
    def begins_healing(self, step: HealingStep) -> None:
        """Before each step of an attempt."""

    @abstractmethod
    def lacks_table(self, segment: Segment) -> None:
        """The pass came to no end for want of the table of producers at the end of this sealed segment."""

    @abstractmethod
    def owes_seal(self, key: SegmentKey) -> None:
        """It ended, and is not sealed yet."""

    @abstractmethod
    def free(self, key: SegmentKey) -> None: ...

    @abstractmethod
    def open_file(self, key: SegmentKey) -> RestartEvent: ...

    @abstractmethod
    def set_aside(self, key: SegmentKey) -> None: ...

    @abstractmethod
    def make_anew(self, key: SegmentKey) -> StepFailed | None: ...

    @abstractmethod
    def scan(self, key: SegmentKey, from_position: int, producers: Producers) -> FileScanned: ...

    @abstractmethod
    def is_led_to(self, key: SegmentKey) -> bool:
        """Whether whole batches lead to the checkpoint's place and offset."""

    @abstractmethod
    def cut(self, key: SegmentKey, position: int) -> StepFailed | None: ...

    @abstractmethod
    def flush(self, key: SegmentKey) -> StepFailed | None: ...

    @abstractmethod
    def revoke(self, keys: tuple[SegmentKey, ...]) -> None: ...

    @abstractmethod
    def ended(self, how: Serve | Heal | StopShard) -> None: ...

    @abstractmethod
    def refill(self, segment: Segment, end_offset: int) -> Work: ...

    @abstractmethod
    def ask_store(self, segment: Segment, ranges: tuple[OffsetRange, ...]) -> Work: ...

    @abstractmethod
    def pause(self) -> Work:
        """Of a moment."""

    @abstractmethod
    def give_up(self, key: SegmentKey, holes: tuple[OffsetRange, ...], end_offset: int) -> None: ...

    @abstractmethod
    def end_segment(self, key: SegmentKey, end_offset: int) -> Work: ...

    @abstractmethod
    def drop_segment(self, key: SegmentKey, log_start: int) -> Work: ...

    @abstractmethod
    def list_files(self) -> None:
        """A pass again."""

    @abstractmethod
    def healing_ended(self, how: TryAgain | StopHealing) -> None: ...
