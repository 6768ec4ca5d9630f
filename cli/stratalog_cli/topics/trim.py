"""`stratalog topics trim`: delete the oldest records of a topic, up to an offset or a time.

The log start moves (DeleteRecords), and readers see it at once; whole segments below it are deleted from every tier
after `remote.delete.delay.ms`. What would be deleted is shown before anything is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from stratalog.connect.missing_right import Right
from stratalog.model.counting import counted
from stratalog.model.errors import NotFound
from stratalog.model.rights import Operation, ResourceType
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.group_reads import Shard, bounds_of, offsets_since
from stratalog_cli.connect.group_reset import Bounds, goal_of, new_offset
from stratalog_cli.connect.kafka_clients import WAIT_S, BootstrapOption, KafkaPlace, clients, result_of
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.moments import now_ms
from stratalog_cli.terminal.say import say


def trim(
    topic: TopicArgument,
    only: Annotated[
        list[int] | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard; may be repeated.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="Delete all records below this offset.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="Delete all before the first record of that time or later."),
    ] = None,
    back: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="DURATION", help="Like --to-time, with the time this long ago: 12h, 7d."),
    ] = None,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Delete all records that are there now.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete the oldest records of a topic. The topic, its settings and its newer records stay."""
    goal = goal_of(to_offset, False, to_latest, to_time, back, now_ms())
    place = KafkaPlace(bootstrap, is_write=not dry_run)
    there = place.shards_of(topic, Operation.DELETE)
    if missing := set(only or ()) - set(there):
        raise NotFound(f"topic {topic} has no shard {min(missing)}; it has {len(there)}")
    shards: list[Shard] = [(topic, shard) for shard in there if not only or shard in only]
    bounds = bounds_of(place, shards)
    at_time = {} if goal.time_ms is None else offsets_since(place, shards, goal.time_ms)
    starts = {shard: new_offset(goal, bounds[shard], at_time.get(shard)) for shard in shards}
    moved = {shard: start for shard, start in starts.items() if start > bounds[shard].start}
    _show(bounds, starts, output)
    if dry_run or not moved:
        say("nothing was deleted: " + ("this was a dry run" if dry_run else "no record is that old"), to_stderr=True)
        return
    offsets = sum(start - bounds[shard].start for shard, start in moved.items())
    what = f"delete {counted(offsets, 'offset')} in {counted(len(moved), 'shard')} of topic {printable(topic)}"
    if not yes:
        require_confirmation(what)
    kafka, deleting = clients(), Right(Operation.DELETE, ResourceType.TOPIC, topic)
    wanted = [kafka.TopicPartition(*shard, start) for shard, start in moved.items()]
    for answer in place.admin.delete_records(wanted, request_timeout=WAIT_S).values():
        result_of(answer, place.refusal(deleting))
    say(f"deleted {counted(offsets, 'offset')} in {counted(len(moved), 'shard')}", to_stderr=True)


def _show(bounds: Mapping[Shard, Bounds], starts: Mapping[Shard, int], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(
            [
                {"shard": shard[1], "log_start": bounds[shard].start, "goes_to": start, "log_end": bounds[shard].end}
                for shard, start in starts.items()
            ]
        )
        return
    rows = [
        (str(shard[1]), str(bounds[shard].start), str(start), str(bounds[shard].end)) for shard, start in starts.items()
    ]
    print_table(("#shard", "#log start", "#goes to", "#log end"), rows)
