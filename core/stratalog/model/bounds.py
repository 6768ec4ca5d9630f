"""What numbers may be, said in the type: `Count` is an int to every caller, and a bounded one where it comes from the
network.

Pure. The shard table keeps the bounds that matter to it for every caller (`machines.table.bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias


@dataclass(frozen=True, slots=True)
class Bounds:
    """From `least` to `most`, both included."""

    least: int
    most: int


INT64: Bounds = Bounds(-(2**63), 2**63 - 1)
"""Of every number that says nothing else."""
Int32: TypeAlias = Annotated[int, Bounds(0, 2**31 - 1)]
Count: TypeAlias = Annotated[int, Bounds(0, 2**63 - 1)]
"""An offset, a size, a count, a time."""
CountOrNone: TypeAlias = Annotated[int, Bounds(-1, 2**63 - 1)]
"""The same, or -1 for none yet."""
