"""Numbers and lists of things, as people read them in messages."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, thing: str, *, verb: tuple[str, str] | None = None) -> str:
    """`1 shard`, `1,200 shards`; with a verb for one and for many, `1 shard waits`, `2 shards wait`."""
    said = f"{number:,} {thing}" if number == 1 else f"{number:,} {_many(thing)}"
    return said if verb is None else f"{said} {verb[number != 1]}"


def _many(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith(("s", "ch")) else f"{thing}s"


def joined(things: Sequence[object], conjunction: str = "and") -> str:
    """`A`, `A and B`, `A, B and C`."""
    said = [str(thing) for thing in things]
    return f"{', '.join(said[:-1])} {conjunction} {said[-1]}" if len(said) > 1 else "".join(said)


def nodes_named(node_ids: Sequence[int], conjunction: str = "and") -> str:
    """`node 1`, `nodes 1 and 2`, `node 1 or 2`; at least one."""
    return f"{'node' if len(node_ids) == 1 or conjunction == 'or' else 'nodes'} {joined(node_ids, conjunction)}"
