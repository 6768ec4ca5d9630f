"""Numbers and lists of things, as people read them in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

_COMPARED: Final = 1_000
"""Names that are compared with a mistyped one: some 10 ms."""


def counted(number: int, thing: str, *, verb: tuple[str, str] | None = None) -> str:
    """`1 shard`, `1,200 shards`; with a verb for one and for many, `1 shard waits`, `2 shards wait`."""
    words = f"{number:,} {thing}" if number == 1 else f"{number:,} {_many(thing)}"
    return words if verb is None else f"{words} {verb[number != 1]}"


def _many(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith(("s", "ch")) else f"{thing}s"


def joined(things: Sequence[object], conjunction: str = "and") -> str:
    """`A`, `A and B`, `A, B and C`."""
    words = [str(thing) for thing in things]
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}" if len(words) > 1 else "".join(words)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` with the nearest of the known names; empty when none is near."""
    like = (one for one in known if abs(len(one) - len(name)) <= max(2, len(name) // 3))
    near = difflib.get_close_matches(name[:300], islice(like, _COMPARED), n=3, cutoff=0.75)
    return f" (did you mean {joined([f'{one!r}' for one in near], 'or')}?)" if near else ""


def nodes_named(node_ids: Sequence[int], conjunction: str = "and") -> str:
    """`node 1`, `nodes 1 and 2`, `node 1 or 2`; at least one."""
    return f"{'node' if len(node_ids) == 1 or conjunction == 'or' else 'nodes'} {joined(node_ids, conjunction)}"
