"""`stratalog topics restore`: have archived objects of a topic restored, so that its records can be read.

What would be restored, and what that costs, is shown before anything is asked for. To run it again shows how far the
restore is, and asks for what is still missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from stratalog.admin_api.wording import human_bytes
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, NotFound, StratalogError
from stratalog.objects import BucketClasses, ClassedObject, RestoreTier, open_classes
from stratalog.stored.restores import RestorePlan, WantedRange, plan_restore, price_of
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.bucket_asked import BucketOption
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.connect.output import AdminOption, OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.connect.several_nodes import Nodes
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.say import say

_AT_A_TIME: Final = 16
_SHOWN_REFUSALS: Final = 5
_FAILED: Final = 1


def restore(
    topic: TopicArgument,
    bucket: BucketOption,
    only: Annotated[
        list[int] | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard; may be repeated.")
    ] = None,
    from_offset: Annotated[
        int, typer.Option("--from-offset", metavar="N", min=0, help="Only what has records from this offset on.")
    ] = 0,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=1, help="Only what has records below this offset.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3_650, metavar="N", help="Days for which the restored copies stay.")
    ] = 7,
    tier: Annotated[
        RestoreTier, typer.Option(case_sensitive=False, help="How soon: Expedited (minutes), Standard, Bulk (days).")
    ] = RestoreTier.STANDARD,
    price_per_gib: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="Price of a restored GiB, in this class and tier.")
    ] = 0.0,
    price_per_1000: Annotated[
        float, typer.Option(min=0, metavar="PRICE", help="Price of 1,000 restore requests, in this class and tier.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show how much is archived or restored.")] = False,
    yes: YesOption = False,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Have the objects of a topic restored that are in an archive class, and show how far that is."""
    if to_offset is not None and to_offset <= from_offset:
        raise InvalidRequest(f"--to-offset {to_offset} is not above --from-offset {from_offset}")
    nodes = Nodes(admin)
    cluster_id = nodes.first(lambda node: node.status()).cluster_id
    known = nodes.first(lambda node: node.topic(topic)).topic
    topic_id = UUID(known.topic_id)
    if absent := [shard for shard in only or () if shard >= known.shards]:
        raise NotFound(f"topic {topic} has no shard {min(absent)}: it has shards 0 to {known.shards - 1}")
    names = ObjectNames("", cluster_id)
    classes = open_classes(bucket)
    if classes is None:
        raise InvalidRequest(f"{bucket} is not a bucket of an S3 server: nothing in it is archived")
    with classes:
        wanted = WantedRange(topic_id, frozenset(only or ()), from_offset, to_offset)
        plan = plan_restore(names, wanted, _objects(classes, names, topic_id))
        if not plan.amounts:
            raise NotFound(
                f"{classes.url} has no object with these records of topic {topic}: is it the object store of cluster "
                f"{cluster_id}? `stratalog segments {topic}` shows what is uploaded"
            )
        price = price_of(plan, price_per_gib, price_per_1000)
        if output is OutputFormat.TABLE:
            _show(plan, price, days)
        refused: list[str] = []
        if plan.to_ask and not dry_run:
            what = f"{counted(len(plan.to_ask), 'object')} ({human_bytes(plan.bytes_to_ask)}) of topic {topic}"
            for_money = f", for {price:.2f}" if price else ""
            if not yes:
                require_confirmation(f"restore {printable(what)} for {counted(days, 'day')}{for_money}")
            refused = list(_ask(classes, plan.to_ask, days, tier))
    asked = 0 if dry_run else len(plan.to_ask) - len(refused)
    if output is OutputFormat.JSON:
        print_json(_document(topic, plan, price, asked, refused))
    _report_end(plan, asked, refused, dry_run=dry_run)
    if refused:
        raise typer.Exit(_FAILED)


def _objects(classes: BucketClasses, names: ObjectNames, topic_id: UUID) -> Iterator[ClassedObject]:
    yield from classes.list(names.topic_prefix(topic_id))
    yield from classes.list(names.bundles_prefix)


def _ask(classes: BucketClasses, objects: Sequence[ClassedObject], days: int, tier: RestoreTier) -> Iterator[str]:
    """Yields why an object is not restored, for each that the server refuses."""

    def ask(one: ClassedObject) -> str | None:
        try:
            classes.restore(one.key, days, tier)
        except StratalogError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(_AT_A_TIME) as workers:
        yield from (refusal for refusal in workers.map(ask, objects) if refusal is not None)


def _show(plan: RestorePlan, price: float, days: int) -> None:
    rows = [
        (storage_class, state, str(amount.objects), human_bytes(amount.bytes))
        for (storage_class, state), amount in sorted(plan.amounts.items())
    ]
    print_table(("class", "state", "#objects", "#bytes"), rows)
    if plan.to_ask:
        cost = f"{price:.2f}" if price else "not known (--price-per-gib, --price-per-1000)"
        bytes_kept = f"{human_bytes(plan.bytes_to_ask)} of copies for {counted(days, 'day')}"
        say(f"to be restored: {counted(len(plan.to_ask), 'object')}, {bytes_kept}; price of the restore: {cost}")


def _document(topic: str, plan: RestorePlan, price: float, asked: int, refused: Sequence[str]) -> dict[str, Any]:
    return {
        "topic": topic,
        "is_readable": plan.is_readable,
        "objects": [
            {"storage_class": storage_class, "state": state, "objects": amount.objects, "bytes": amount.bytes}
            for (storage_class, state), amount in sorted(plan.amounts.items())
        ],
        "to_restore": {"objects": len(plan.to_ask), "bytes": plan.bytes_to_ask, "price": price},
        "asked": asked,
        "refused": list(refused),
    }


def _report_end(plan: RestorePlan, asked: int, refused: Sequence[str], *, dry_run: bool) -> None:
    for refusal in refused[:_SHOWN_REFUSALS]:
        say(printable(refusal), to_stderr=True)
    if len(refused) > _SHOWN_REFUSALS:
        say(f"and {counted(len(refused) - _SHOWN_REFUSALS, 'more refusal')}", to_stderr=True)
    if asked:
        say(
            f"asked for {counted(asked, 'restore')}: consumers that wait read on once they are done, and the same "
            "command shows how far they are",
            to_stderr=True,
        )
    elif dry_run and plan.to_ask:
        say("nothing was asked for: this was a dry run", to_stderr=True)
    elif not plan.to_ask:
        what = "everything is readable" if plan.is_readable else "a restore is under way: everything was asked for"
        say(f"nothing is to be restored: {what}", to_stderr=True)
