"""Lines of Prometheus's text format, version 0.0.4. Pure; a test reads them with Prometheus's own parser."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from stratalog.telemetry.histogram import Histogram

HEAD: Final = "# HELP {name} {help}\n# TYPE {name} {kind}\n"
"""Before the lines of one metric. A help text has no line break and no backslash."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def rows_of(name: str, label_names: Iterable[str], labels: Iterable[str], value: float | Histogram) -> list[str]:
    """The lines of one value, or of a histogram with its buckets."""
    pairs = [f'{label}="{text.translate(_ESCAPED)}"' for label, text in zip(label_names, labels, strict=True)]
    if not isinstance(value, Histogram):
        return [f"{name}{_braced(pairs)} {_number(value)}\n"]
    rows = []
    for bound, count in value.cumulative():
        bucket = _braced([*pairs, f'le="{bound}"'])
        rows.append(f"{name}_bucket{bucket} {_number(count)}\n")
    shown = _braced(pairs)
    rows.append(f"{name}_count{shown} {_number(value.count)}\n")
    rows.append(f"{name}_sum{shown} {_number(value.total * value.scale)}\n")
    return rows


def _braced(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))
