"""`stratalog rebalance`: what would go elsewhere so that leaders and load are even, and with --seal at once.

Nothing that is written already moves: a shard rolls, and its next segment is elsewhere. Each round is planned again
from the metadata, so a round that was cut off, or a node that goes meanwhile, costs another round at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.rolls import MOST_AT_ONCE, RollElsewhereRequest, SegmentName
from stratalog.machines.copies.rebalance import Move, Plan, plan_rebalance
from stratalog.model.counting import counted
from stratalog.model.ids import SegmentKey
from stratalog.model.metadata import Snapshot
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.meta_question import MetaOption, ask_meta
from stratalog_cli.connect.output import AdminOption, OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.connect.several_nodes import Nodes, warn_of_unasked
from stratalog_cli.terminal.say import say

_MOST_ROUNDS: Final = 16
_SHOWN_MOVES: Final = 20
_NOT_EVEN: Final = 1

Rolls = Callable[[Sequence[Move]], set[SegmentKey]]
"""Ask for rolls; returns whose leaders were asked."""


def register(app: typer.Typer) -> None:
    app.command("rebalance")(rebalance)


def rebalance(
    meta: MetaOption = None,
    admin: AdminOption = None,
    seal: Annotated[
        bool,
        typer.Option(
            "--seal", help="Roll the segments of these shards now, in rounds, instead of waiting until they are full."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --seal: show what would be done, and do nothing.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="With --seal: how long one round may take.")
    ] = 30.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show which shards would move to other nodes at their next roll, to balance leaders and load.

    Old data stays where it is. With --seal, give the admin addresses of all nodes in --admin: each leader rolls its own
    segments."""

    def read() -> Snapshot:
        return ask_meta(meta, lambda client: client.snapshot())

    first = plan_rebalance(read())
    if dry_run or not seal:
        _show(first, first, 0, output)
        return
    nodes = Nodes(admin, timeout_s=60.0, is_write=True)
    last, rounds = even_out(read, lambda moves: _roll(nodes, moves), wait_s)
    _show(first, last, rounds, output)
    if last.moves and not last.is_even:
        say("new writes are not even yet: run it again, with the admin addresses of all nodes", to_stderr=True)
        raise typer.Exit(_NOT_EVEN)
    nodes.end()


def even_out(read: Callable[[], Snapshot], roll: Rolls, wait_s: float) -> tuple[Plan, int]:
    """Rounds until new writes are even, or nothing moves. Returns what is planned then, and how many there were."""
    for rounds in range(_MOST_ROUNDS):
        plan = plan_rebalance(read())
        if plan.is_even or not plan.moves:
            return plan, rounds
        asked = roll(plan.moves)
        if not asked or not _until_rolled(read, asked, wait_s):
            return plan_rebalance(read()), rounds + 1
    return plan_rebalance(read()), _MOST_ROUNDS


def _until_rolled(read: Callable[[], Snapshot], asked: set[SegmentKey], wait_s: float) -> bool:
    """Whether all of them have gone on in another segment, or were deleted, within that time."""
    end = time.monotonic() + wait_s
    while True:
        active = {shard.segments[-1].key for shard in read().shards if shard.segments}
        if active.isdisjoint(asked):
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


def _roll(nodes: Nodes, moves: Sequence[Move]) -> set[SegmentKey]:
    keys = {_name(move): move.segment.key for move in moves}
    names, asked = list(keys), set[SegmentName]()
    for at in range(0, len(names), MOST_AT_ONCE):
        request = RollElsewhereRequest(segments=names[at : at + MOST_AT_ONCE])

        def ask(client: AdminClient, request: RollElsewhereRequest = request) -> list[SegmentName]:
            return client.roll_elsewhere(request).asked

        asked.update(name for answer in nodes.each(ask) for name in answer)
    missing = {move.segment.leader for move in moves if _name(move) not in asked}
    warn_of_unasked([], [node for node in missing if node is not None], "where shards are led that were to be rolled")
    return {keys[name] for name in asked if name in keys}


def _name(move: Move) -> SegmentName:
    key = move.segment.key
    return SegmentName(topic_id=key.topic_id, shard=key.shard, epoch=key.epoch)


def _show(first: Plan, last: Plan, rounds: int, output: OutputFormat) -> None:
    """What was, and what is after the rounds; without any, what would be after one."""
    is_done = rounds > 0
    after = {
        share.node_id: (share.leaders, share.load) if is_done else (share.leaders_after, share.load_after)
        for share in last.shares
    }
    nodes = [
        {
            "node_id": share.node_id,
            "takes_new": share.takes_new,
            "scarcity": share.scarcity,
            "leaders": share.leaders,
            "load": share.load,
            "leaders_after": after.get(share.node_id, (0, 0))[0],
            "load_after": after.get(share.node_id, (0, 0))[1],
        }
        for share in first.shares
    ]
    moves = [_move_fields(move) for move in last.moves]
    if output is OutputFormat.JSON:
        print_json({"rounds": rounds, "is_even": last.is_even, "nodes": nodes, "moves": moves})
        return
    columns = ("#node", "takes new", "#leaders", "#load", "#leaders after", "#load after")
    rows = [
        (
            str(node["node_id"]),
            "yes" if node["takes_new"] else "no",
            *(str(node[name]) for name in ("leaders", "load", "leaders_after", "load_after")),
        )
        for node in nodes
    ]
    print_table(columns, rows)
    if is_done:
        say(f"{rounds} {'round' if rounds == 1 else 'rounds'}; nothing that was written moved")
        return
    if last.is_even or not last.moves:
        say("new writes are as even as rolls can make them")
    if last.moves:
        columns = ("topic", "#shard", "leader", "replicas", "leader then", "replicas then")
        shown = [tuple(printable(str(value)) for value in move.values()) for move in moves[:_SHOWN_MOVES]]
        print_table(columns, shown)
        rest = f", {len(moves) - _SHOWN_MOVES} are not shown" if len(moves) > _SHOWN_MOVES else ""
        say(f"{counted(len(moves), 'shard')} would go elsewhere with the next segment{rest}; --seal rolls them now")


def _move_fields(move: Move) -> dict[str, object]:
    return {
        "topic": move.topic,
        "shard": move.segment.key.shard,
        "leader": move.segment.leader,
        "replicas": list(move.segment.replicas),
        "leader_then": move.successor.leader,
        "replicas_then": list(move.successor.replicas),
    }
