"""`stratalog recover TOPIC --shard N`: have a shard without a leader recovered, and give up what only lost disks had.

Without --unclean nothing can be lost: the replicas are asked what they hold. With it the shard continues without nodes
that will never come back; the exact range is shown, by the meta service's own trial of the change, before anything is
asked or done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from stratalog.machines.plans.shard_troubles import Trouble, TroubleKind
from stratalog.model.commands.table_commands import BeginRecovery, SealUnclean
from stratalog.model.counting import counted, nodes_named
from stratalog.model.errors import Conflict, NotFound
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import GapReason, GivenUp, Segment
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.meta_question import MetaOption, ask_meta
from stratalog_cli.connect.offered import TopicArgument
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.say import say

_WAITING: Final = (TroubleKind.NO_LEADER, TroubleKind.NO_SOURCE)


def register(app: typer.Typer) -> None:
    app.command("recover")(recover)


def recover(
    topic: TopicArgument,
    shard: Annotated[int, typer.Option("--shard", min=0, metavar="N", help="The shard that takes no writes.")],
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Give up what only nodes have that will never come back with their disks."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done and given up.")] = False,
    yes: YesOption = False,
    meta: MetaOption = None,
) -> None:
    """Recover a shard that has no leader. With --unclean, continue without nodes that are lost for good.

    Shows exactly which offsets --unclean gives up, and asks before it does."""
    where = f"{printable(topic)}-{shard}"
    for trouble in _waiting(meta, topic, shard, is_write=not dry_run):
        segment = _read(meta, trouble.segment)
        say(f"{where}: {printable(trouble.words)}")
        if not segment.is_fenced:
            _begin(meta, where, segment, dry_run=dry_run)
            if dry_run:
                continue
            segment = _read(meta, trouble.segment)
        if unclean:
            _give_up(meta, where, segment, dry_run=dry_run, yes=yes)
    if dry_run:
        say("nothing was changed: this was a dry run")
        return
    left = _waiting(meta, topic, shard, is_required=False)
    for trouble in left:
        say(f"{where}: {printable(trouble.words)}")
    if not left:
        say(f"{where} waits for no node any more")


def _waiting(
    meta: str | None, topic: str, shard: int, *, is_write: bool = False, is_required: bool = True
) -> Sequence[Trouble]:
    """Oldest segment first. Raises: NotFound where nothing waits."""
    found = [
        one
        for one in ask_meta(meta, lambda client: client.troubles(), is_write=is_write)
        if one.topic == topic and one.segment.shard == shard and one.kind in _WAITING
    ]
    if not found and is_required:
        raise NotFound(f"{topic}-{shard} waits for no node: there is nothing to recover; nothing was done")
    return sorted(found, key=lambda one: one.segment.epoch)


def _begin(meta: str | None, where: str, segment: Segment, *, dry_run: bool) -> None:
    """Its leader is gone, and its recovery was not begun: the replicas are to say what they hold. Gives up nothing."""
    leader = segment.leader
    if leader is not None and any(
        one.node_id == leader and one.is_alive for one in ask_meta(meta, lambda client: client.nodes())
    ):
        raise Conflict(f"{where}: node {leader} leads it and is alive: nothing was done")
    if dry_run:
        say(f"{where}: would ask {nodes_named(segment.replicas)} what they hold; what is lost is known after that")
        return
    ask_meta(meta, lambda client: client.perform(BeginRecovery(segment.key)), is_write=True)
    say(f"{where}: its recovery has begun: {nodes_named(segment.replicas)} are asked what they hold")


def _read(meta: str | None, key: SegmentKey) -> Segment:
    return ask_meta(meta, lambda client: client.segment(key))


def _give_up(meta: str | None, where: str, segment: Segment, *, dry_run: bool, yes: bool) -> None:
    command = SealUnclean(segment.key)
    planned = ask_meta(meta, lambda client: client.perform(command, validate_only=True))
    lost = _given_up(planned)
    say(f"{where}: {_words(lost, planned)}")
    if dry_run:
        return
    if not yes:
        require_confirmation(f"give up {_range(lost)} of {where}")
    done = ask_meta(meta, lambda client: client.perform(command), is_write=True)
    if _given_up(done) != lost:
        say(f"{where}: a node answered meanwhile: {_words(_given_up(done), done)}")
    say(f"{where}: it continues without them; tell the owners of the data")


def _given_up(segment: Segment) -> GivenUp | None:
    return next((one for one in segment.handed.given_up if one.reason is GapReason.UNCLEAN), None)


def _words(lost: GivenUp | None, segment: Segment) -> str:
    if lost is None:
        return f"nothing would be given up: the segment ends at offset {segment.end_offset}"
    if lost.base_offset == lost.end_offset:
        return (
            f"gives up what was written from offset {lost.base_offset} on: no node that answers knows how far that "
            f"went; the log continues at offset {segment.end_offset}"
        )
    count = counted(lost.end_offset - lost.base_offset, "offset")
    return (
        f"gives up {count}, [{lost.base_offset}, {lost.end_offset}); the log continues at offset {segment.end_offset}"
    )


def _range(lost: GivenUp | None) -> str:
    if lost is None:
        return "nothing"
    if lost.base_offset == lost.end_offset:
        return f"what was written from offset {lost.base_offset} on"
    return f"offsets [{lost.base_offset}, {lost.end_offset})"
