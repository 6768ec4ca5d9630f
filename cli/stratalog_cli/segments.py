"""`stratalog segments`, `locate`, `seal`: the pieces of a log, where they are, and ending the one that is written."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import Location, SealRequest, SegmentInfo
from stratalog.admin_api.wording import human_bytes, human_time
from stratalog_cli.output import (
    DEFAULT_ADMIN,
    AdminOption,
    OutputFormat,
    OutputOption,
    print_fields,
    print_json,
    print_table,
)

_NOT_READABLE = 1


def register(app: typer.Typer) -> None:
    app.command("segments")(segments)
    app.command("locate")(locate)
    app.command("seal")(seal)


def segments(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="All topics when left out.")] = None,
    shard: Annotated[int | None, typer.Option(min=0, help="Only this shard.")] = None,
    admin: AdminOption = DEFAULT_ADMIN,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List segments: state, offsets, epoch, size, tier, replicas, which of them have it whole, and place."""
    listed = AdminClient(admin).segments(topic, shard)
    if output is OutputFormat.JSON:
        print_json(listed)
        return
    columns = (
        "topic",
        "#shard",
        "#epoch",
        "state",
        "#offsets from",
        "#to",
        "#size",
        "last time",
        "tier",
        "uploaded",
        "replicas",
        "whole at",
        "place",
    )
    give_up = ("place", "last time", "#size", "replicas", "whole at")
    print_table(columns, [_row(segment) for segment in listed], give_up=give_up)


def locate(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    shard: Annotated[int, typer.Argument(metavar="SHARD", min=0)],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    admin: AdminOption = DEFAULT_ADMIN,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell where one offset is: tier, file or object, position, and why. Exit code 1 when it cannot be read."""
    found = AdminClient(admin).locate(topic, shard, offset)
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        _print_location(found)
    if not found.is_readable:
        raise typer.Exit(_NOT_READABLE)


def seal(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    shard: Annotated[int | None, typer.Argument(metavar="[SHARD]", min=0, help="All shards when left out.")] = None,
    admin: AdminOption = DEFAULT_ADMIN,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End the active segment of a shard, so that it becomes immutable and can move to the cold tier."""
    sealed = AdminClient(admin, timeout_s=60.0).seal(SealRequest(topic=topic, shard=shard))
    if output is OutputFormat.JSON:
        print_json(sealed)
        return
    columns = ("#shard", "#epoch", "#offsets from", "#to", "outcome")
    rows = [(str(s.shard), str(s.epoch), str(s.base_offset), str(s.end_offset), s.outcome) for s in sealed]
    print_table(columns, rows)


def _uploaded(segment: SegmentInfo) -> str:
    if segment.remote_state == "partial":
        return f"to {segment.commit_offset}"
    return "all" if segment.remote_state == "complete" else "-"


def _nodes(nodes: list[int]) -> str:
    return ",".join(str(node) for node in nodes) or "-"


def _row(segment: SegmentInfo) -> tuple[str, ...]:
    others = len(segment.places) - 1 + segment.more_places
    more = f" and {others} more" if others > 0 else ""
    return (
        segment.topic,
        str(segment.shard),
        str(segment.epoch),
        segment.state,
        str(segment.base_offset),
        str(segment.end_offset),
        human_bytes(segment.size_bytes),
        human_time(segment.max_timestamp_ms),
        segment.tier.value,
        _uploaded(segment),
        _nodes(segment.replicas),
        _nodes(segment.isr or segment.local_nodes),
        segment.places[0] + more if segment.places else "-",
    )


def _print_location(found: Location) -> None:
    pairs = [("offset", f"{found.offset} of {found.topic}, shard {found.shard}")]
    pairs.append(("readable", "yes" if found.is_readable else "no"))
    if found.epoch is not None:
        pairs.append(("segment", f"epoch {found.epoch}, from offset {found.segment_base_offset}, {found.state}"))
    if found.is_readable:
        pairs.append(("tier", found.tier.value))
    if found.place is not None:
        pairs.append(("place", found.place))
    if found.position is not None:
        batch = f"offsets [{found.batch_base_offset}, {found.batch_end_offset}), {found.record_count} records"
        pairs.append(("position", f"byte {found.position}"))
        pairs.append(("batch", f"{batch}, {found.batch_size_bytes} bytes"))
    pairs += [("also at", place) for place in found.also_at]
    pairs += [("why" if number == 0 else "", reason) for number, reason in enumerate(found.why)]
    print_fields(pairs)
