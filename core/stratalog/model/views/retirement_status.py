"""The progress of a retirement, as `GET /v1/retirements`, the command line and the UI show it."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.model.bounds import Count, CountOrNone, Int32
from stratalog.model.counting import counted
from stratalog.model.retirement import Retirement, RetireStep, UnheldRange


@dataclass(frozen=True, slots=True)
class RetirementStatus:
    node_id: Int32
    is_alive: bool
    retirement: Retirement
    remaining_segments: Count
    """That still need the node: open, or kept nowhere else."""
    remaining_bytes: Count
    """Of the sealed ones."""
    bytes_per_second: Count
    """By which that got less lately."""
    seconds_left: CountOrNone
    """Time left at that rate; -1 while it is unknown."""
    words: str
    unheld: tuple[UnheldRange, ...] = ()
    """What it alone held, while it is not alive: the first of these ranges, sealed ones before open ones."""
    unheld_count: Count = 0
    """How many there are, listed or not."""


def words_of(record: Retirement, segments: int, size_bytes: int, rate: int, seconds_left: int) -> str:
    """What it does now, in a line for people."""
    if record.wait is not None:
        return f"waits ({record.wait.reason}): {record.wait.words}"
    match record.step:
        case RetireStep.PREFLIGHT:
            return "is being checked"
        case RetireStep.CORDON:
            return "nothing new is placed on it"
        case RetireStep.SEAL:
            return f"{counted(segments, 'segment')} open or being sealed; writing continues elsewhere"
        case RetireStep.OFFLOAD:
            eta = f", {seconds_left} s left" if seconds_left >= 0 else ""
            mib = 1024 * 1024
            return (
                f"{counted(segments, 'segment')}, {size_bytes / mib:.1f} MiB still only here; at {rate / mib:.1f} "
                f"MiB/s{eta}"
            )
        case RetireStep.VERIFY:
            return (
                f"what it held is being checked again: {sum(one.is_clean for one in record.sightings)} of 2 checks made"
            )
        case RetireStep.SNAPSHOT:
            return "the list of what it held is being written"
        case RetireStep.RELEASE:
            return "its write lock is released; it does not come back"
        case RetireStep.MOUNT:
            return "another node is taking over what it held"
        case RetireStep.DONE:
            kept = "its directory is still needed" if record.keeps_directory else "its directory is not needed"
            if record.is_volume_lost:
                kept = "its directory was given up"
            lost = (
                f"; {counted(record.given_up_count, 'range', verb=('was', 'were'))} given up"
                if record.given_up_count
                else ""
            )
            return f"has left; {kept}{lost}"
