"""Numbers and troubles as people read them, for tables and pages."""

from __future__ import annotations

from datetime import UTC, datetime

from stratalog.admin_api.models import NodeStatus


def counted(number: int, thing: str) -> str:
    """`1 shard`, `1,200 shards`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def stopped_lines(status: NodeStatus) -> list[str]:
    """What a node says of its stopped shards, a line each; none when all take writes."""
    lines = [
        f"shard {one.topic}-{one.shard} takes no writes ({one.cause}): {one.reason}; next: {one.next_step}"
        for one in status.stopped
    ]
    if status.stopped_shards > len(status.stopped):
        lines.append(f"and {counted(status.stopped_shards - len(status.stopped), 'shard')} more that take no writes")
    return lines


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
