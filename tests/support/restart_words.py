"""What a restart and a healing do, step by step, in the words of their stories (support.simulated_disk)."""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.restart.restart_events import (
    ConfirmRoll,
    CutTail,
    FlushFile,
    FreeLeftover,
    Heal,
    MakeAnew,
    NoteMissing,
    OpenFile,
    Producers,
    ReadProducers,
    RestartStep,
    RevokeCheckpoints,
    RevokeStale,
    ScanFile,
    SealEnded,
    Serve,
    SetAside,
    StopShard,
    TakeSealed,
    TraceCheckpoint,
)
from stratalog.machines.restart.shard_healing import (
    AskStore,
    DropSegment,
    EndSegment,
    GiveUp,
    HealingStep,
    ListFiles,
    OffsetRange,
    Pause,
    Refill,
    StopHealing,
    TryAgain,
)

BATCH_BYTES = 10
"""What a batch takes of a drawn file."""


def in_words(step: RestartStep) -> str:
    match step:
        case TakeSealed(segment):
            return f"take sealed {segment.epoch}"
        case NoteMissing(segment):
            return f"note that {segment.epoch} is missing"
        case FreeLeftover(key):
            return f"free {key.epoch}, which metadata let go of"
        case OpenFile(key):
            return f"open {key.epoch}"
        case SetAside(key):
            return f"set {key.epoch} aside"
        case MakeAnew(key):
            return f"make {key.epoch} again"
        case ScanFile(key, from_position):
            return f"scan {key.epoch} from {key.base_offset + from_position // BATCH_BYTES}"
        case TraceCheckpoint(key):
            return f"trace what leads to the checkpoint of {key.epoch}"
        case ReadProducers(segment):
            return f"read who wrote up to the end of {segment.epoch}"
        case CutTail(key, position):
            return f"cut {key.epoch} at {key.base_offset + position // BATCH_BYTES}"
        case FlushFile(key):
            return f"flush {key.epoch}"
        case RevokeCheckpoints(keys) | RevokeStale(keys):
            when = ", which is stale" if isinstance(step, RevokeStale) else ""
            return "revoke the checkpoint of " + ", ".join(str(key.epoch) for key in keys) + when
        case Serve(log):
            told = [f"{found.key.epoch} ended at {found.end_offset}" for found in log.ended]
            if log.active is not None:
                doubt = ", takes no batches" if log.active.is_tail_doubted else ""
                unknown = "" if log.active.is_confirmed else ", not confirmed"
                told.append(f"{log.active.key.epoch} goes on at {log.active.end_offset}{unknown}{doubt}")
            if log.inherited is not None:
                told.append(f"the next file begins with producers of {_seen_at(log.inherited)}")
            return f"serve readers up to {log.high_watermark}" + "".join(f"; {one}" for one in told)
        case Heal(segment, local_end, known_end, log):
            ended = "".join(f"; {found.key.epoch} is read" for found in log.ended)
            return f"heal {segment.epoch}: {local_end} to {known_end} are missing{ended}"
        case StopShard(why, log):
            ended = "".join(f"; {found.key.epoch} is read" for found in log.ended)
            return f"stop, the disk: {why}{ended}{f', up to {log.high_watermark}' if ended else ''}"
        case SealEnded(key):
            return f"seal {key.epoch}"
        case ConfirmRoll(old, new):
            return f"confirm the roll of {old.epoch} at {new.base_offset}"
        case _:
            assert_never(step)


def healing_in_words(step: HealingStep) -> str:
    match step:
        case MakeAnew() | RevokeCheckpoints():
            return in_words(step)
        case Refill(segment, end_offset):
            return f"refill {segment.epoch} up to {end_offset}"
        case AskStore(segment, ranges, why):
            asked = f"ask the store for {_ranges(ranges)} of" if ranges else "there is nothing to ask the store for in"
            return f"{asked} {segment.epoch}: {why}"
        case Pause():
            return "pause"
        case GiveUp(segment, holes, end_offset):
            return f"give up {_ranges(holes)} in {segment.epoch}, which ends at {end_offset}"
        case EndSegment(key, end_offset):
            return f"end {key.epoch} at {end_offset}"
        case DropSegment(key, log_start):
            return f"drop {key.epoch}, all of it is below the log start {log_start}"
        case ListFiles():
            return "list the files"
        case TryAgain(why):
            return f"try again: {why}"
        case StopHealing(cause, why, lost):
            return f"stop, {cause.name}{' ' if lost else ''}{_ranges(lost)}: {why}"
        case _:
            assert_never(step)


def _ranges(ranges: tuple[OffsetRange, ...]) -> str:
    return ", ".join(f"{begin} to {end}" for begin, end in ranges)


def _seen_at(producers: Producers) -> int:
    return producers[0].last_append_ms if producers else 0
