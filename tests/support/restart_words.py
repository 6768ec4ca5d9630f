"""What a restart and a healing do, step by step, in the words of their stories (support.simulated_disk)."""

from __future__ import annotations

from typing import assert_never

from stratalog.machines.restart import restart_events, shard_healing

BATCH_BYTES = 10
"""What a batch takes of a drawn file."""


def in_words(step: restart_events.RestartStep) -> str:
    match step:
        case restart_events.TakeSealed(segment):
            return f"take sealed {segment.epoch}"
        case restart_events.NoteMissing(segment):
            return f"note that {segment.epoch} is missing"
        case restart_events.FreeLeftover(key):
            return f"free {key.epoch}, which metadata let go of"
        case restart_events.OpenFile(key):
            return f"open {key.epoch}"
        case restart_events.SetAside(key):
            return f"set {key.epoch} aside"
        case restart_events.RecreateFile(key):
            return f"make {key.epoch} again"
        case restart_events.ScanFile(key, from_position):
            return f"scan {key.epoch} from {key.base_offset + from_position // BATCH_BYTES}"
        case restart_events.TraceCheckpoint(key):
            return f"trace what leads to the checkpoint of {key.epoch}"
        case restart_events.ReadProducers(segment):
            return f"read who wrote up to the end of {segment.epoch}"
        case restart_events.CutTail(key, position):
            return f"cut {key.epoch} at {key.base_offset + position // BATCH_BYTES}"
        case restart_events.FlushFile(key):
            return f"flush {key.epoch}"
        case restart_events.RevokeCheckpoints(keys) | restart_events.RevokeStale(keys):
            when = ", which is stale" if isinstance(step, restart_events.RevokeStale) else ""
            return "revoke the checkpoint of " + ", ".join(str(key.epoch) for key in keys) + when
        case restart_events.Serve(log):
            told = [f"{found.key.epoch} ended at {found.end_offset}" for found in log.ended]
            if log.active is not None:
                doubt = ", takes no batches" if log.active.is_tail_doubted else ""
                unknown = "" if log.active.is_confirmed else ", not confirmed"
                told.append(f"{log.active.key.epoch} goes on at {log.active.end_offset}{unknown}{doubt}")
            if log.inherited is not None:
                told.append(f"the next file begins with producers of {_seen_at(log.inherited)}")
            return f"serve readers up to {log.high_watermark}" + "".join(f"; {one}" for one in told)
        case restart_events.Heal(segment, local_end, known_end, log):
            ended = "".join(f"; {found.key.epoch} is read" for found in log.ended)
            return f"heal {segment.epoch}: {local_end} to {known_end} are missing{ended}"
        case restart_events.StopShard(why, log):
            ended = "".join(f"; {found.key.epoch} is read" for found in log.ended)
            return f"stop, the disk: {why}{ended}{f', up to {log.high_watermark}' if ended else ''}"
        case restart_events.SealEnded(key):
            return f"seal {key.epoch}"
        case restart_events.ConfirmRoll(old, new):
            return f"confirm the roll of {old.epoch} at {new.base_offset}"
        case _:
            assert_never(step)


def healing_in_words(step: shard_healing.HealingStep) -> str:
    match step:
        case restart_events.RecreateFile() | restart_events.RevokeCheckpoints():
            return in_words(step)
        case shard_healing.Refill(segment, end_offset):
            return f"refill {segment.epoch} up to {end_offset}"
        case shard_healing.AskStore(segment, ranges, why):
            asked = f"ask the store for {_ranges(ranges)} of" if ranges else "there is nothing to ask the store for in"
            return f"{asked} {segment.epoch}: {why}"
        case shard_healing.Pause():
            return "pause"
        case shard_healing.GiveUp(segment, holes, end_offset):
            return f"give up {_ranges(holes)} in {segment.epoch}, which ends at {end_offset}"
        case shard_healing.EndSegment(key, end_offset):
            return f"end {key.epoch} at {end_offset}"
        case shard_healing.DropSegment(key, log_start):
            return f"drop {key.epoch}, all of it is below the log start {log_start}"
        case shard_healing.ListFiles():
            return "list the files"
        case shard_healing.TryAgain(why):
            return f"try again: {why}"
        case shard_healing.StopHealing(cause, why, lost):
            return f"stop, {cause.name}{' ' if lost else ''}{_ranges(lost)}: {why}"
        case _:
            assert_never(step)


def _ranges(ranges: tuple[shard_healing.OffsetRange, ...]) -> str:
    return ", ".join(f"{begin} to {end}" for begin, end in ranges)


def _seen_at(producers: restart_events.Producers) -> int:
    return producers[0].last_append_ms if producers else 0
