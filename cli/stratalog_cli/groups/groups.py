"""`stratalog groups …`: list, describe with the lag of each shard, reset; `groups_forget` deletes.

A reset is planned from what is there (`stratalog_cli.connect.group_reset`), shown, and then committed as a whole; the
coordinator refuses it, as this command does, while the group has members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stratalog.connect.missing_right import Right, principal_of
from stratalog.model.counting import counted
from stratalog.model.errors import Conflict, InvalidRequest, NotFound
from stratalog.model.rights import ANONYMOUS, Operation, ResourceType
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.group_reads import (
    GroupArgument,
    Shard,
    bounds_of,
    committed_of,
    described,
    offsets_since,
    require_there,
    state_of,
    wanted_shards,
)
from stratalog_cli.connect.group_reset import Bounds, Goal, goal_of, new_offset
from stratalog_cli.connect.kafka_clients import WAIT_S, BootstrapOption, KafkaPlace, as_ours, clients, result_of
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_fields, print_json, print_table
from stratalog_cli.groups.forget import delete, delete_offsets
from stratalog_cli.terminal.moments import now_ms
from stratalog_cli.terminal.say import say


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="List, describe, reset and delete consumer groups."
    )
    group.command("list")(list_groups)
    group.command("describe")(describe)
    group.command("reset")(reset)
    group.command("delete")(delete)
    group.command("delete-offsets")(delete_offsets)
    app.add_typer(group, name="groups")


def list_groups(bootstrap: BootstrapOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List groups with their states and numbers of members."""
    place = KafkaPlace(bootstrap, is_write=False)
    listed = result_of(place.admin.list_consumer_groups(request_timeout=WAIT_S))
    if listed.errors:
        raise as_ours(listed.errors[0].args[0])
    names = sorted(one.group_id for one in listed.valid)
    groups = described(place, names)
    rows = [{"group": name, "state": state_of(groups[name]), "members": len(groups[name].members)} for name in names]
    if output is OutputFormat.JSON:
        print_json(rows)
    elif rows:
        print_table(("group", "state", "#members"), [tuple(map(str, one.values())) for one in rows])
    else:
        say(_no_groups(place))


def _no_groups(place: KafkaPlace) -> str:
    who = principal_of(place.settings)
    if who == ANONYMOUS:
        return "no groups yet: a consumer with a group.id creates one"
    return (
        f"no groups, or none that {'this client' if who is None else printable(str(who))} may see: DESCRIBE of a group "
        "(`stratalog acls add`) shows it"
    )


def describe(
    group: GroupArgument, bootstrap: BootstrapOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show a group: its members, and for each shard the committed offset, the end of the log, and the lag."""
    place = KafkaPlace(bootstrap, is_write=False)
    found = described(place, [group])[group]
    committed = committed_of(place, group)
    require_there(group, found, committed)
    owners = {
        (one.topic, one.partition): member
        for member in found.members
        for one in (member.assignment.topic_partitions if member.assignment else ())
    }
    shards = sorted({*committed, *owners})
    bounds = bounds_of(place, [shard for shard in shards if shard[0] in place.topics])
    rows = [_row(shard, committed.get(shard), bounds.get(shard), owners.get(shard)) for shard in shards]
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    behind = sum(lag > 0 for lag in lags)
    uncommitted = sum(row["committed"] is None and row["lag"] is not None for row in rows)
    description = {
        "group": group,
        "state": state_of(found),
        "assignor": found.partition_assignor,
        "coordinator": None if found.coordinator is None else found.coordinator.id,
        "members": [
            {"member": one.member_id, "client": one.client_id, "host": one.host, "instance": one.group_instance_id}
            for one in found.members
        ],
        "shards": rows,
        "lag": sum(lags),
    }
    if output is OutputFormat.JSON:
        print_json(description)
        return
    members = ", ".join(f"{one.client_id} at {one.host}" for one in found.members) or "none"
    print_fields(
        [
            ("group", group),
            ("state", str(description["state"])),
            ("coordinator", "-" if description["coordinator"] is None else f"node {description['coordinator']}"),
            ("assignor", found.partition_assignor or "-"),
            ("members", members),
            ("lag", f"{counted(sum(lags), 'record')} in {behind:,} of {counted(len(lags), 'shard')}"),
        ]
    )
    if uncommitted:
        say(
            f"{counted(uncommitted, 'shard')} without a committed offset, counted from the start of the log: where its "
            "member begins, its auto.offset.reset says"
        )
    columns = ("topic", "#shard", "#committed", "#log start", "#log end", "#lag", "client", "member")
    cells = [tuple("-" if value is None else str(value) for value in row.values()) for row in rows]
    print_table(columns, cells, give_up=("member", "#log start", "client"))


def reset(
    group: GroupArgument,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:SHARD,...]", help="Topic to reset, or some of its shards; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All shards for which the group has committed offsets.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", min=0, help="To this offset.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the start of the log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="To the first record of that time or later: 2013-01-01T12:00."),
    ] = None,
    back: Annotated[
        str | None,
        typer.Option(
            "--by-duration", metavar="DURATION", help="Like --to-time, with the time that was this long ago: 12h, 7d."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be committed.")] = False,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Set the committed offsets of a group. Refused while the group has members: stop them first.

    An offset outside the log becomes the nearest end of the log. If no record is that new, the group gets the end."""
    goal = goal_of(to_offset, to_earliest, to_latest, to_time, back, now_ms())
    if bool(topics) == all_topics:
        raise InvalidRequest("say which: --topic TOPIC, or --all-topics for all that the group has committed")
    named = [wanted_shards(text) for text in topics or ()]
    place = KafkaPlace(bootstrap, is_write=not dry_run)
    found, committed = described(place, [group])[group], committed_of(place, group)
    if found.members:
        clients_there = ", ".join(sorted({printable(one.client_id) for one in found.members}))
        raise Conflict(
            f"group {group} has {counted(len(found.members), 'member')} ({clients_there}): nothing was changed; stop "
            f"{'it' if len(found.members) == 1 else 'them'}, then try again"
        )
    wanted = sorted(committed) if all_topics else _named(place, named)
    if not wanted:
        raise NotFound(f"group {group} has committed nothing: name a topic with --topic")
    planned = _planned(place, goal, wanted)
    if not dry_run:
        _commit(place, group, planned)
    rows = [
        {"topic": topic, "shard": shard, "committed": committed.get((topic, shard)), "goes_to": offset}
        for (topic, shard), offset in planned.items()
    ]
    if output is OutputFormat.JSON:
        print_json(rows)
        return
    cells = [tuple("-" if value is None else str(value) for value in row.values()) for row in rows]
    print_table(("topic", "#shard", "#committed", "#goes to"), cells)
    say("nothing was changed: this was a dry run" if dry_run else f"group {printable(group)} continues from there")


def _named(place: KafkaPlace, named: list[tuple[str, tuple[int, ...] | None]]) -> list[Shard]:
    wanted: set[Shard] = set()
    for topic, shards in named:
        there = place.shards_of(topic, Operation.READ)
        if missing := set(shards or ()) - set(there):
            raise NotFound(f"topic {topic} has no shard {min(missing)}: it has {counted(len(there), 'shard')}")
        wanted |= {(topic, shard) for shard in (there if shards is None else shards)}
    return sorted(wanted)


# Committing -------------------------------------------------------------------------------------------------------
def _planned(place: KafkaPlace, goal: Goal, shards: list[Shard]) -> dict[Shard, int]:
    bounds = bounds_of(place, shards)
    at_time: Mapping[Shard, int] = {}
    if goal.time_ms is not None:
        at_time = offsets_since(place, shards, goal.time_ms)
    return {shard: new_offset(goal, bounds[shard], at_time.get(shard)) for shard in shards}


def _commit(place: KafkaPlace, group: str, planned: Mapping[Shard, int]) -> None:
    kafka = clients()
    offsets = [kafka.TopicPartition(topic, shard, offset) for (topic, shard), offset in planned.items()]
    asked = kafka.ConsumerGroupTopicPartitions(group, offsets)
    (answer,) = place.admin.alter_consumer_group_offsets([asked], request_timeout=WAIT_S).values()
    of_group = Right(Operation.READ, ResourceType.GROUP, group)
    answered = result_of(answer, place.refusal(of_group)).topic_partitions
    refused = [one for one in answered if one.error is not None]
    if refused:
        of_topic = Right(Operation.READ, ResourceType.TOPIC, refused[0].topic)
        done = len(answered) - len(refused)
        outcome = f"; {done} of {counted(len(answered), 'offset')} {'was' if done == 1 else 'were'} committed"
        raise place.refusal(of_group, of_topic, outcome=outcome)(refused[0].error)


# Showing ----------------------------------------------------------------------------------------------------------
def _row(shard: Shard, committed: int | None, bounds: Bounds | None, member: Any) -> dict[str, Any]:
    return {
        "topic": shard[0],
        "shard": shard[1],
        "committed": committed,
        "log_start": None if bounds is None else bounds.start,
        "log_end": None if bounds is None else bounds.end,
        "lag": None if bounds is None else max(0, bounds.end - (bounds.start if committed is None else committed)),
        "client": None if member is None else member.client_id,
        "member": None if member is None else member.member_id,
    }
