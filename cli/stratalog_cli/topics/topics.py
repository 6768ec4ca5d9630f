"""`stratalog topics …`: list, create, describe, alter, delete, compare, trim, restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from pydantic import ValidationError

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import AlterTopic, CreateTopic, SegmentInfo, TopicDetail, TopicInfo
from stratalog.admin_api.wording import human_bytes, human_time
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest
from stratalog.settings.load import parse_assignments
from stratalog.telemetry.printable import printable
from stratalog_cli.connect import offered
from stratalog_cli.connect.output import (
    AdminOption,
    OutputFormat,
    OutputOption,
    SetOption,
    print_fields,
    print_json,
    print_table,
)
from stratalog_cli.connect.several_nodes import Nodes, warn_of_unasked
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.say import say
from stratalog_cli.topics.compare import compare
from stratalog_cli.topics.restore import restore
from stratalog_cli.topics.segments import merged
from stratalog_cli.topics.trim import trim

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.", autocompletion=offered.topics)]
NewNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="List, create, describe, alter, delete, compare, trim and restore topics.",
    )
    group.command("list")(list_topics)
    group.command("create")(create)
    group.command("describe")(describe)
    group.command("alter")(alter)
    group.command("delete")(delete)
    group.command("compare")(compare)
    group.command("trim")(trim)
    group.command("restore")(restore)
    app.add_typer(group, name="topics")


def list_topics(
    show_internal: Annotated[
        bool, typer.Option("--internal", help="Also list the internal topics of Stratalog.")
    ] = False,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List topics with their shards, segments and bytes by tier."""
    topics = [topic for topic in Nodes(admin).first(AdminClient.topics) if show_internal or not topic.is_internal]
    if output is OutputFormat.JSON:
        print_json(topics)
    elif topics:
        columns = ("topic", "#shards", "#replicas", "#segments", "#local", "#cold", "set on the topic")
        print_table(columns, [_row(topic) for topic in topics])
    else:
        say("no topics yet; create one: stratalog topics create NAME")


def create(
    name: NewNameArgument,
    shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of shards. Default: num.partitions of the node.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Replicas of each shard. Default: default.replication.factor of the node."
        ),
    ] = None,
    settings: SetOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether the topic could be created.")] = False,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a topic."""
    try:
        request = CreateTopic(
            name=name,
            shards=shards,
            replication_factor=replicas,
            settings=parse_assignments(settings or ()),
            validate_only=dry_run,
        )
    except ValidationError:  # the other fields were checked as options: the service has the same rule for the rest
        raise InvalidRequest(
            f"topic name {name[:300]!r} is not allowed: use 1 to 249 of letters, digits, '.', '_' and '-', not '.' "
            "or '..'"
        ) from None
    topic = Nodes(admin, is_write=not dry_run).first(lambda node: node.create_topic(request))
    if output is OutputFormat.JSON:
        print_json(topic)
    else:
        done = "could create" if dry_run else "created"
        say(f"{done} topic {printable(topic.name)} with {counted(topic.shards, 'shard')}")


def describe(
    name: NameArgument,
    all_settings: Annotated[bool, typer.Option("--all", help="Also show settings that have their defaults.")] = False,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a topic: its shards with leaders, in-sync replicas and segments by tier, and the settings that differ from
    the defaults. JSON has all settings."""
    nodes = Nodes(admin)
    details = nodes.each(lambda node: node.topic(name))
    detail, silent = told_by_leaders(details)
    tiers = segments_by_tier(merged(nodes.each(lambda node: node.segments(name))))
    if output is OutputFormat.JSON:
        print_json(detail.model_dump(mode="json") | {"segments_by_tier": tiers})
    else:
        _print_detail(detail, tiers, all_settings=all_settings)
    warn_of_unasked(
        (one.node_id for one in details), silent, "where shards are led; only their leader knows where they end"
    )
    nodes.end()


def segments_by_tier(segments: Sequence[SegmentInfo]) -> dict[int, dict[str, int]]:
    """Shard -> tier -> how many segments are there; one that is in two counts as `both`."""
    found: dict[int, dict[str, int]] = {}
    for one in segments:
        by_tier = found.setdefault(one.shard, {})
        by_tier[one.tier.value] = by_tier.get(one.tier.value, 0) + 1
    return found


def told_by_leaders(details: list[TopicDetail]) -> tuple[TopicDetail, set[int]]:
    """Each shard as its leader tells it, where that was asked; and leaders that were not."""
    asked = {one.node_id: {shard.shard: shard for shard in one.shards} for one in details}
    first = details[0]
    shards = [asked.get(shard.leader or 0, {}).get(shard.shard, shard) for shard in first.shards]
    silent = {shard.leader for shard in shards if shard.leader is not None} - asked.keys()
    return first.model_copy(update={"shards": shards}), silent


def alter(
    name: NameArgument,
    settings: SetOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="KEY",
            help="Setting that goes back to the node's value; may be repeated.",
            autocompletion=offered.topic_keys,
        ),
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, metavar="N", help="Increase to N shards.")] = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a topic's settings, or give it more shards."""
    request = AlterTopic(set=parse_assignments(settings or ()), unset=unset or [], shards=shards)
    if not (request.set or request.unset or request.shards):
        raise InvalidRequest("nothing to change: give --set KEY=VALUE, --unset KEY or --shards N")
    topic = Nodes(admin, is_write=True).first(lambda node: node.alter_topic(name, request))
    if output is OutputFormat.JSON:
        print_json(topic)
    else:
        shown = counted(topic.shards, "shard")
        set_on_it = printable(_settings(topic)) or "no own settings"
        say(f"altered topic {printable(topic.name)}: {shown}, {set_on_it}")


def delete(
    name: NameArgument,
    yes: YesOption = False,
    admin: AdminOption = None,
) -> None:
    """Delete a topic and its data in both tiers."""
    nodes = Nodes(admin, is_write=True)
    if not yes:
        topic = nodes.first(lambda node: node.topic(name)).topic
        held = f"{human_bytes(topic.bytes.local)} local, {human_bytes(topic.bytes.cold)} cold"
        shards = counted(topic.shards, "shard")
        require_confirmation(f"delete topic {printable(name)} with {shards} ({held})")
    nodes.first(lambda node: node.delete_topic(name))
    say(f"deleted topic {printable(name)}")


def _settings(topic: TopicInfo) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(topic.settings.items()))


def _row(topic: TopicInfo) -> tuple[str, ...]:
    numbers = (topic.shards, topic.replication_factor, topic.segments)
    tiers = (human_bytes(topic.bytes.local), human_bytes(topic.bytes.cold))
    return (topic.name, *(f"{number}" for number in numbers), *tiers, _settings(topic))


def _print_detail(detail: TopicDetail, tiers: Mapping[int, Mapping[str, int]], *, all_settings: bool) -> None:
    topic = detail.topic
    print_fields(
        [
            ("topic", topic.name),
            ("id", topic.topic_id),
            ("created", human_time(topic.created_ms)),
            ("shards", f"{topic.shards}, {counted(topic.replication_factor, 'replica')} each"),
            ("local, cold", f"{human_bytes(topic.bytes.local)}, {human_bytes(topic.bytes.cold)}"),
        ]
    )
    columns = (
        "#shard",
        "#log start",
        "#high watermark",
        "#uploaded to",
        "#epoch",
        "leader",
        "isr",
        "segments",
        "#local",
        "#cold",
    )
    rows = []
    for shard in detail.shards:
        end = "-" if shard.high_watermark is None else shard.high_watermark
        uploaded = "-" if shard.commit_offset < 0 else shard.commit_offset
        offsets = (shard.log_start_offset, end, uploaded, shard.epoch)
        leader = "-" if shard.leader is None else str(shard.leader)
        isr = ",".join(str(node) for node in shard.isr) or "-"
        sizes = (human_bytes(shard.bytes.local), human_bytes(shard.bytes.cold))
        rows.append(
            (
                str(shard.shard),
                *(str(offset) for offset in offsets),
                leader,
                isr,
                _segments(tiers.get(shard.shard, {})),
                *sizes,
            )
        )
    print_table(columns, rows, title="Shards", give_up=("#epoch", "segments", "#local", "#cold", "#log start"))
    shown = [setting for setting in detail.settings if all_settings or setting.source != "default"]
    rest = len(detail.settings) - len(shown)
    if shown:
        in_force = [(setting.key, setting.value, setting.source) for setting in shown]
        title = "Settings in force" if all_settings else "Settings that differ from the defaults"
        print_table(("setting", "value", "from"), in_force, title=title)
    if rest:
        say(f"{counted(rest, 'setting', verb=('has its default', 'have their defaults'))}; --all shows them")


def _segments(by_tier: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {tier}" for tier, count in sorted(by_tier.items())) or "-"
