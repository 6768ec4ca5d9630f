"""`stratalog segments`, `locate`, `seal`: the pieces of a log, where they are, and ending the one that is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from stratalog.admin_api.models import Location, SealedShard, SealRequest, SegmentInfo, Tier
from stratalog.admin_api.wording import human_bytes, human_time
from stratalog.model.counting import counted
from stratalog_cli.connect.offered import MaybeTopicArgument, TopicArgument
from stratalog_cli.connect.output import (
    AdminOption,
    OutputFormat,
    OutputOption,
    print_fields,
    print_json,
    print_table,
)
from stratalog_cli.connect.several_nodes import Nodes, warn_of_unasked

_NOT_READABLE = 1
_NOT_SEALED = 1
_ON_DISK = (Tier.LOCAL, Tier.BOTH)


def register(app: typer.Typer) -> None:
    app.command("segments")(segments)
    app.command("locate")(locate)
    app.command("seal")(seal)


def segments(
    topic: MaybeTopicArgument = None,
    shard: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this shard.")] = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List segments: state, offsets, epoch, size, tier, replicas, which replicas are complete, and location.

    Tier and location are what the nodes that were asked report; * marks the leader."""
    nodes = Nodes(admin)
    listed = merged(nodes.each(lambda node: node.segments(topic, shard)))
    if output is OutputFormat.JSON:
        print_json(listed)
        nodes.end()
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
    give_up = ("place", "last time", "#size", "replicas", "whole at", "#epoch", "uploaded")
    print_table(columns, [_row(segment) for segment in listed], give_up=give_up)
    nodes.end()


def locate(
    topic: TopicArgument,
    shard: Annotated[int, typer.Argument(metavar="SHARD", min=0, help="Number of the shard.")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset of the record.")],
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show where an offset is stored: tier, file or object, position, and why. Exit code 1 if it cannot be read.

    With several nodes: shows what the leader of the shard says, and where the others have the offset."""
    nodes = Nodes(admin)
    answers = nodes.each(lambda node: node.locate(topic, shard, offset))
    found, *others = sorted(answers, key=lambda one: (one.node_id != one.leader, not one.is_readable))
    also_at = [
        f"node {one.node_id}: {one.place}" for one in others if one.place is not None and one.place != found.place
    ]
    found = found.model_copy(update={"also_at": [*found.also_at, *dict.fromkeys(also_at)]})
    if output is OutputFormat.JSON:
        print_json(found)
    else:
        _print_location(found)
    leads = [found.leader] if found.leader is not None else []
    warn_of_unasked([one.node_id for one in answers], [*found.holders, *leads], "where a copy is, or the shard is led")
    if not found.is_readable:
        raise typer.Exit(_NOT_READABLE)
    nodes.end()


def seal(
    topic: TopicArgument,
    shard: Annotated[
        int | None, typer.Argument(metavar="SHARD", min=0, help="Only this shard. Default: all shards.")
    ] = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End the active segment of a shard, so that it becomes immutable and can move to the cold tier.

    Only the leader of the shard can do this: exit code 1 if it was not among the nodes asked."""
    nodes = Nodes(admin, timeout_s=60.0, is_write=True)
    request = SealRequest(topic=topic, shard=shard)
    answers: dict[int, SealedShard] = {}
    for answer in nodes.each(lambda node: node.seal(request)):
        for one in answer:
            if one.outcome != "elsewhere" or one.shard not in answers:
                answers[one.shard] = one
    sealed = [answers[number] for number in sorted(answers)]
    elsewhere = {one.leader for one in sealed if one.outcome == "elsewhere" and one.leader is not None}
    warn_of_unasked([], elsewhere, "where shards are led that were to be sealed")
    if output is OutputFormat.JSON:
        print_json(sealed)
    else:
        columns = ("#shard", "#epoch", "#offsets from", "#to", "outcome")
        rows = [(str(s.shard), str(s.epoch), str(s.base_offset), str(s.end_offset), s.outcome) for s in sealed]
        print_table(columns, rows)
    if elsewhere:
        raise typer.Exit(_NOT_SEALED)
    nodes.end()


def merged(answers: Sequence[Sequence[SegmentInfo]]) -> list[SegmentInfo]:
    """Each segment once, as described by the node that knows most about it, with the places of all."""
    if len(answers) == 1:
        return list(answers[0])
    by_key: dict[tuple[str, int, int], list[SegmentInfo]] = {}
    for answer in answers:
        for one in answer:
            by_key.setdefault((one.topic, one.shard, one.epoch), []).append(one)
    return [_joined(several) for _, several in sorted(by_key.items())]


def _joined(several: Sequence[SegmentInfo]) -> SegmentInfo:
    best = max(several, key=lambda one: (one.node_id == one.leader, one.end_offset, one.size_bytes))
    tiers = {one.tier for one in several}
    has_local, has_cold = bool(tiers & {Tier.LOCAL, Tier.BOTH}), bool(tiers & {Tier.COLD, Tier.BOTH})
    tier = Tier.BOTH if has_local and has_cold else Tier.LOCAL if has_local else Tier.COLD if has_cold else best.tier
    files = [f"node {one.node_id}: {one.places[0]}" for one in several if one.places and one.tier in _ON_DISK]
    objects = [place for one in several for place in (one.places[1:] if one.tier in _ON_DISK else one.places)]
    return best.model_copy(update={"tier": tier, "places": [*files, *dict.fromkeys(objects)]})


def _uploaded(segment: SegmentInfo) -> str:
    if segment.remote_state == "partial":
        return f"to {segment.commit_offset}"
    return "all" if segment.remote_state == "complete" else "-"


def _nodes(nodes: list[int], leader: int | None = None) -> str:
    return ",".join(f"{node}*" if node == leader else str(node) for node in nodes) or "-"


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
        _nodes(segment.replicas, segment.leader),
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
    if found.holders:
        leader = f"; node {found.leader} leads the shard" if found.leader is not None else ""
        word = "node" if len(found.holders) == 1 else "nodes"
        pairs.append(("copies", f"on {word} {', '.join(map(str, found.holders))}{leader}"))
    if found.place is not None:
        pairs.append(("place", found.place))
    if found.position is not None:
        records = counted(found.record_count or 0, "record")
        batch = f"offsets [{found.batch_base_offset}, {found.batch_end_offset}), {records}"
        pairs.append(("position", f"byte {found.position}"))
        pairs.append(("batch", f"{batch}, {found.batch_size_bytes} bytes"))
    pairs += [("also at", place) for place in found.also_at]
    pairs += [("why" if number == 0 else "", reason) for number, reason in enumerate(found.why)]
    print_fields(pairs)
