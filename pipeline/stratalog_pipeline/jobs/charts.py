"""Bar charts as SVG: text in, text out. Pure; no plotting library is needed for so little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

_ROW, _LABEL, _BARS, _NUMBER = 26, 190, 520, 110
_COLOURS = ("#3465a4", "#73a946", "#c17d11", "#75507b", "#cc0000", "#729fcf", "#8f5902", "#4e9a06")


def bar_chart(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], series: Sequence[str], show: Callable[[float], str]
) -> str:
    """One bar per row; a row's values are stacked, one colour for each of the series. Negative values count as none."""
    most = max((sum(max(0.0, value) for value in values) for _, values in rows), default=0.0) or 1.0
    width, top = _LABEL + _BARS + _NUMBER, 64
    height = top + _ROW * len(rows) + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="17">{escape(title)}</text>',
    ]
    at = 12
    for number, name in enumerate(series):
        out.append(f'<rect x="{at}" y="36" width="12" height="12" fill="{_COLOURS[number % len(_COLOURS)]}"/>')
        out.append(f'<text x="{at + 17}" y="47">{escape(name)}</text>')
        at += 32 + 8 * len(name)
    for number, (label, values) in enumerate(rows):
        y = top + _ROW * number
        out.append(f'<text x="{_LABEL - 8}" y="{y + 17}" text-anchor="end">{escape(label[:28])}</text>')
        x = float(_LABEL)
        for place, value in enumerate(values):
            size = max(0.0, value) / most * _BARS
            colour = _COLOURS[place % len(_COLOURS)]
            out.append(f'<rect x="{x:.1f}" y="{y + 4}" width="{size:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
            x += size
        out.append(f'<text x="{x + 6:.1f}" y="{y + 17}">{escape(show(sum(values)))}</text>')
    return "\n".join([*out, "</svg>", ""])
