"""Numbers of things, as people read them in messages."""

from __future__ import annotations


def counted(number: int, thing: str, *, verb: tuple[str, str] | None = None) -> str:
    """`1 shard`, `1,200 shards`; with a verb for one and for many, `1 shard waits`, `2 shards wait`."""
    said = f"{number:,} {thing}" if number == 1 else f"{number:,} {_many(thing)}"
    return said if verb is None else f"{said} {verb[number != 1]}"


def _many(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith(("s", "ch")) else f"{thing}s"
