"""What a shell does for the restart and the healing of a shard: each step of `machines.restart.shard_restart` and
`machines.restart.shard_healing` in the order asked, over operations on files that a subclass provides.

The stories and property tests of both machines provide them on files drawn as text, without delay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any, TypeAlias, assert_never

from stratalog.machines.restart import restart_events, shard_healing
from stratalog.machines.restart.shard_restart import ShardRestart
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import Segment

Work: TypeAlias = Generator[Any, Any, shard_healing.HealingEvent | None]
"""May wait for something; its result answers the step."""


class RestartSteps(ABC):
    # A pass ---------------------------------------------------------------------------------------------------------
    def do_pass(self, restart: ShardRestart, listed: restart_events.FilesListed) -> None:
        """Do the steps of a pass until the machine asks for no more; `ended` gets the result."""
        event: restart_events.RestartEvent | None = listed
        while event is not None:
            steps, event = restart.step(event), None
            restart.check_invariants()
            for number, step in enumerate(steps, 1):
                self.begins(step)
                event = self.do_step(step)
                if event is not None:
                    is_last = number == len(steps) or isinstance(event, restart_events.StepFailed)
                    assert is_last, f"{steps[number:]} come behind {step}, which is answered"
                    break

    def do_step(self, step: restart_events.RestartStep) -> restart_events.RestartEvent | None:
        match step:
            case restart_events.TakeSealed() | restart_events.NoteMissing() | restart_events.ConfirmRoll():
                return None
            case restart_events.SealEnded(key):
                self.owes_seal(key)
            case restart_events.FreeLeftover(key):
                self.free(key)
            case restart_events.OpenFile(key):
                return self.open_file(key)
            case restart_events.SetAside(key):
                self.set_aside(key)
            case restart_events.RecreateFile(key):
                return self.make_again(key)
            case restart_events.ScanFile(key, from_position, producers):
                return self.scan(key, from_position, producers)
            case restart_events.TraceCheckpoint(key):
                return restart_events.CheckpointTraced(key, self.is_led_to(key))
            case restart_events.CutTail(key, position):
                return self.cut(key, position)
            case restart_events.FlushFile(key):
                return self.flush(key)
            case restart_events.RevokeCheckpoints(keys) | restart_events.RevokeStale(keys):
                self.revoke(keys)
            case restart_events.ReadProducers(segment):
                self.lacks_table(segment)
            case restart_events.Serve() | restart_events.Heal() | restart_events.StopShard():
                self.ended(step)
            case _:
                assert_never(step)
        return None

    # An attempt to heal ---------------------------------------------------------------------------------------------
    def do_attempt(
        self, healing: shard_healing.ShardHealing, begun: shard_healing.AttemptBegun
    ) -> Generator[Any, Any, None]:
        event: shard_healing.HealingEvent | None = begun
        while event is not None:
            steps, event = healing.step(event), None
            for number, step in enumerate(steps, 1):
                self.begins_healing(step)
                event = yield from self.heal_step(step)
                if event is not None:
                    assert number == len(steps) or isinstance(event, shard_healing.AttemptFailed), f"{step} is answered"
                    break

    def heal_step(self, step: shard_healing.HealingStep) -> Work:
        match step:
            case restart_events.RecreateFile(key):
                failed = self.make_again(key)
                return None if failed is None else shard_healing.AttemptFailed(failed.why, is_final=False)
            case shard_healing.Refill(segment, end_offset):
                return (yield from self.refill(segment, end_offset))
            case shard_healing.AskStore(segment, ranges):
                return (yield from self.ask_store(segment, ranges))
            case shard_healing.Pause():
                yield from self.pause()
            case shard_healing.GiveUp(segment, holes, end_offset):
                self.give_up(segment.key, holes, end_offset)
            case restart_events.RevokeCheckpoints(keys):
                self.revoke(keys)
            case shard_healing.EndSegment(key, end_offset):
                return (yield from self.end_segment(key, end_offset))
            case shard_healing.DropSegment(key, log_start):
                return (yield from self.drop_segment(key, log_start))
            case shard_healing.ListFiles():
                self.list_files()
            case shard_healing.TryAgain() | shard_healing.StopHealing():
                self.healing_ended(step)
            case _:
                assert_never(step)
        return None

    # For the subclass that has the files ----------------------------------------------------------------------------
    @abstractmethod
    def begins(self, step: restart_events.RestartStep) -> None:
        """Before each step of a pass."""

    @abstractmethod
    def begins_healing(self, step: shard_healing.HealingStep) -> None:
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
    def open_file(self, key: SegmentKey) -> restart_events.RestartEvent: ...

    @abstractmethod
    def set_aside(self, key: SegmentKey) -> None: ...

    @abstractmethod
    def make_again(self, key: SegmentKey) -> restart_events.StepFailed | None: ...

    @abstractmethod
    def scan(
        self, key: SegmentKey, from_position: int, producers: restart_events.Producers
    ) -> restart_events.FileScanned: ...

    @abstractmethod
    def is_led_to(self, key: SegmentKey) -> bool:
        """Whether whole batches lead to the checkpoint's place and offset."""

    @abstractmethod
    def cut(self, key: SegmentKey, position: int) -> restart_events.StepFailed | None: ...

    @abstractmethod
    def flush(self, key: SegmentKey) -> restart_events.StepFailed | None: ...

    @abstractmethod
    def revoke(self, keys: tuple[SegmentKey, ...]) -> None: ...

    @abstractmethod
    def ended(self, how: restart_events.Serve | restart_events.Heal | restart_events.StopShard) -> None: ...

    @abstractmethod
    def refill(self, segment: Segment, end_offset: int) -> Work: ...

    @abstractmethod
    def ask_store(self, segment: Segment, ranges: tuple[shard_healing.OffsetRange, ...]) -> Work: ...

    @abstractmethod
    def pause(self) -> Work:
        """Of a moment."""

    @abstractmethod
    def give_up(self, key: SegmentKey, holes: tuple[shard_healing.OffsetRange, ...], end_offset: int) -> None: ...

    @abstractmethod
    def end_segment(self, key: SegmentKey, end_offset: int) -> Work: ...

    @abstractmethod
    def drop_segment(self, key: SegmentKey, log_start: int) -> Work: ...

    @abstractmethod
    def list_files(self) -> None:
        """A pass again."""

    @abstractmethod
    def healing_ended(self, how: shard_healing.TryAgain | shard_healing.StopHealing) -> None: ...
