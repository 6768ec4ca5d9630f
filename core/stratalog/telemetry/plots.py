"""Plots and bar charts as SVG, by pygal. No script is in them, and nothing is loaded for them.

Pure. Cost: some 50 ms a plot, so a server draws them on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

Point: TypeAlias = tuple[int, float | None]
"""A moment in ms since 1970, and the value then; None is a gap."""
Series: TypeAlias = tuple[str, Sequence[Point]]

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#b8508f", "#a87900", "#2a93d5", "#75700a", "#6b6b6b")
DARK_COLOURS: Final = ("#56b4e9", "#ff9a57", "#35d0a0", "#f0a1cc", "#f2c14e", "#9cc9ff", "#d0c74a", "#b5b5b5")
_ROW_PX, _HEAD_PX, _BARS_PX, _LONGEST_LABEL = 30, 130, 900, 28
_STRONG_LINES: Final = "inline:{{ id }}.reactive { stroke-opacity: 1; } {{ id }}.line { stroke-width: 2.2px; }"


def line_plot(title: str, series: Sequence[Series], words: Callable[[float], str], is_dark: bool = False) -> bytes:
    """A line for each series, in the colours of `ui.css` (s0, s1, …). `words` writes a value with its unit."""
    import pygal

    values = [value or 0.0 for _, points in series for _, value in points]
    chart = pygal.XY(
        **_chart_style(is_dark),
        width=520,
        height=230,
        show_dots=False,
        allow_interruptions=True,
        show_legend=False,
        range=(0, max([1.0, *values])),
        value_formatter=lambda value: words(max(0.0, value)),
        x_value_formatter=_clock,
        x_labels_major_count=3,
        y_labels_major_count=3,
        show_minor_y_labels=False,
        show_minor_x_labels=False,
        no_data_text="nothing known yet",
    )
    for name, points in series:
        chart.add(name, list(points))
    return _drawn(chart).encode()


def bar_chart(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], series: Sequence[str], show: Callable[[float], str]
) -> str:
    """One bar per row, named with the sum of its values; these are stacked, one colour for each of the series.
    Negative values count as none."""
    import pygal
    from pygal.style import Style

    chart = pygal.HorizontalStackedBar(
        title=title,
        style=Style(background="white", plot_background="white", font_family="sans-serif", colors=COLOURS, opacity=1),
        js=[],
        disable_xml_declaration=True,
        width=_BARS_PX,
        height=_HEAD_PX + _ROW_PX * len(rows),
        explicit_size=True,
        legend_at_bottom=True,
        truncate_label=-1,
        truncate_legend=-1,
        value_formatter=show,
        no_data_text="no data",
    )
    shown = list(reversed(rows))  # pygal begins at the bottom
    chart.x_labels = [f"{label[:_LONGEST_LABEL]}: {show(sum(values))}" for label, values in shown]
    for place, name in enumerate(series):
        chart.add(name, [max(0.0, values[place]) for _, values in shown])
    return _drawn(chart) + "\n"


def _drawn(chart: Any) -> str:
    """Without the script that pygal writes into each drawing even if it has none to load."""
    chart.add_xml_filter(_without_scripts)
    drawn: str = chart.render()
    return drawn


def _without_scripts(root: Any) -> Any:
    for parent in list(root.iter()):
        for child in [one for one in parent if one.tag == "script"]:
            parent.remove(child)
    return root


def _chart_style(is_dark: bool) -> dict[str, Any]:
    from pygal.style import Style

    ink, line = ("#c3ced9", "#3a4650") if is_dark else ("#48566a", "#ccd5dd")
    style = Style(
        background="transparent",
        plot_background="transparent",
        foreground=ink,
        foreground_strong=ink,
        foreground_subtle=ink,
        font_family="system-ui, sans-serif",
        label_font_size=12,
        major_label_font_size=12,
        legend_font_size=12,
        no_data_font_size=14,
        colors=DARK_COLOURS if is_dark else COLOURS,
        guide_stroke_color=line,
        major_guide_stroke_color=line,
        opacity=1,
    )
    return {
        "title": None,
        "style": style,
        "js": [],
        "css": ["file://style.css", "file://graph.css", _STRONG_LINES],
        "disable_xml_declaration": True,
        "truncate_label": -1,
        "margin": 8,
        "print_values": False,
    }


def _clock(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S")
