"""Numbers and troubles as people read them, for tables and pages."""

from __future__ import annotations

from datetime import UTC, datetime

from stratalog.admin_api.models import NodeStatus, ReplicationStatus
from stratalog.model.counting import counted


def stopped_lines(status: NodeStatus) -> list[str]:
    """What a node says of its stopped shards, a line each; none when all take writes."""
    lines = [
        f"shard {one.topic}-{one.shard} takes no writes ({one.cause}): {one.reason}; next: {one.next_step}"
        for one in status.stopped
    ]
    if status.stopped_shards > len(status.stopped):
        lines.append(f"and {counted(status.stopped_shards - len(status.stopped), 'shard')} more that take no writes")
    return lines


def given_up_lines(status: NodeStatus) -> list[str]:
    """Which groups a node had to begin again without data that was given up by force, and which shards may miss
    something. After a rebuild or a restore all shards may, and one line says so."""
    lines = [
        f"offsets {one.base_offset} to {one.end_offset - 1} of shard {one.shard} of the group log were given up: "
        "groups that wrote nowhere else started empty, the others as of before"
        for one in status.groups_given_up
        if one.base_offset < one.end_offset
    ]
    doubtful = sorted({one.shard for one in status.groups_given_up if one.base_offset == one.end_offset})
    if doubtful:
        shards = f"shard{'s' if len(doubtful) > 1 else ''} {', '.join(map(str, doubtful))}"
        lines.append(
            f"{shards} of the group log: nothing is known to be lost, but disks that had the end of it are gone; "
            "groups continue as of what is stored (after a snapshot restore: as of the snapshot)"
        )
    return lines


def following_words(status: ReplicationStatus) -> str:
    """What a node follows, in one line."""
    due = f", {status.copies_due:,} to be copied" if status.copies_due else ""
    faulty = f", {status.faulty_copies:,} faulty" if status.faulty_copies else ""
    return f"{status.behind:,} of {status.segments:,} followed segments behind{due}{faulty}"


def following_lines(status: ReplicationStatus) -> list[str]:
    """The copies that will not continue by themselves soon: those with no source, beginning with the ones that lack
    most."""
    return [
        f"copy of {one.topic}-{one.shard}, epoch {one.epoch}: {one.life}, {counted(one.lag_offsets, 'offset')} behind, "
        "and copies from no node now; if it lasts, see the log of this node"
        for one in status.worst
        if one.asks is None
    ]


def human_bytes(size: int) -> str:
    """`1.5 GiB`; exact below 1 KiB."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_duration(seconds: int) -> str:
    """The two largest units: `3 d 4 h`, `12 s`."""
    days, rest = divmod(max(0, seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    shown = [f"{value} {unit}" for value, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (left, "s")) if value]
    return " ".join(shown[:2]) or "0 s"


def human_time(timestamp_ms: int) -> str:
    """UTC to the millisecond; `-` for no time."""
    if timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
