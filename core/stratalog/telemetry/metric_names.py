"""What a metric may be called: Prometheus's own rules, kept at registration so that no name breaks them.

Base units (seconds, bytes), the unit at the end and before `_total`, no word twice. Names begin with `stratalog_`; only
what every process has, whatever it is, begins with `process_`, as dashboards for any program expect it.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = re.compile(r"(stratalog|process)_[a-z][a-z0-9_]*")
_BASE: Final = ("seconds", "bytes")
_SCALED: Final = {"_ms": 1e-3, "_us": 1e-6}
_OTHER_UNITS: Final = frozenset(
    ("ms", "us", "ns", "millis", "milliseconds", "microseconds", "minutes", "hours", "kib", "mib", "gib")
)


def in_base_units(name: str) -> tuple[str, float]:
    """A field's name as a metric's, and by what its value is multiplied."""
    for suffix, scale in _SCALED.items():
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix)}_seconds", scale
    return name, 1


def fault_of(name: str, *, is_counter: bool) -> str | None:
    """What is wrong with a metric's name; None when nothing is."""
    if not _NAME.fullmatch(name) or is_counter != name.endswith("_total"):
        return "the name must begin with stratalog_, and only counters end in _total"
    words = name.removesuffix("_total").split("_")
    if other := _OTHER_UNITS.intersection(words):
        return f"{min(other)} is not a base unit: seconds and bytes are"
    if any(unit in words[:-1] for unit in _BASE):
        return "the unit must be at the end"
    stems = [word.removesuffix("s") for word in words]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        return f"it says {twice[0]} twice"
    return None
