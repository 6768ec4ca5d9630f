"""The names of planted bugs, as parameters of tests; those that take tens of seconds are `slow`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

_LONG = ("holder is not replaced", "upload above HW", "older state accepted")
"""`make sim-bugs` looks for these, too."""


def names(bugs: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in _LONG else name for name in bugs]
