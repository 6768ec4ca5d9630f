"""The course of a figure as a small drawing: one line over the last half hour, with its newest and its highest value.

Pure. Rates are made of counters: a counter that fell began again with another life and gives no rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from stratalog_node.admin.pages.shell import Markup, joined, text
from stratalog_node.measures.history import Sample, Sums

_WIDTH, _HEIGHT = 300, 70
Point = tuple[int, float]
"""A moment in ms, and the value then."""


def rates(samples: Sequence[Sample], of: Callable[[Sums], int]) -> list[Point]:
    """How much a counter grew each second."""
    return [
        (later.at_ms, (of(later.sums) - of(before.sums)) * 1_000 / (later.at_ms - before.at_ms))
        for before, later in pairwise(samples)
        if later.at_ms > before.at_ms and of(later.sums) >= of(before.sums)
    ]


def levels(samples: Sequence[Sample], of: Callable[[Sums], int]) -> list[Point]:
    return [(one.at_ms, float(of(one.sums))) for one in samples]


def plot(title: str, points: Sequence[Point], show: Callable[[float], str]) -> Markup:
    """`show` writes a value with its unit."""
    if len(points) < 2:
        return Markup(f"<figure><figcaption>{text(title)}<b>{text('…')}</b></figcaption></figure>")
    newest, highest = points[-1][1], max(value for _, value in points)
    begin_ms, end_ms = points[0][0], points[-1][0]
    top = highest or 1.0
    line = " ".join(
        f"{_WIDTH * (at - begin_ms) / max(1, end_ms - begin_ms):.1f},{_HEIGHT - 4 - (_HEIGHT - 8) * value / top:.1f}"
        for at, value in points
    )
    minutes = max(1, (end_ms - begin_ms) // 60_000)
    return joined(
        Markup(f"<figure><figcaption>{text(title)}<b>{text(show(newest))}</b>"),
        Markup(f'<span class="muted">{text(f"at most {show(highest)} in {minutes} min")}</span></figcaption>'),
        Markup(
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{text(title)}">'
        ),
        Markup(f'<polyline points="{line}"/></svg></figure>'),
    )
