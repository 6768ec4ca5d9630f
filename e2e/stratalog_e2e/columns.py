"""The table that `kubectl get` prints, taken apart: a title stands where its column begins, and is one word."""

from __future__ import annotations

import re


def cells(head: str, row: str) -> dict[str, str]:
    """By title. A cell ends where the next column begins, so that an empty one in the middle is seen to be empty."""
    starts = [(found.group(), found.start()) for found in re.finditer(r"\S+", head)]
    ends = [at for _, at in starts[1:]] + [max(len(head), len(row)) + 1]
    return {title: row[at:end].strip() for (title, at), end in zip(starts, ends, strict=True)}
