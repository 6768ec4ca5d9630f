"""Writes the result for machines (latest.json) and for people (latest.md, and a table while it runs)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from stratalog_bench.rows import Row

COLUMNS = ("measure", "Stratalog", "peer", "peer's", "ratio", "to reach", "runs")


@dataclass(slots=True)
class Outcome:
    machine: dict[str, Any]
    seconds: float
    rounds: int
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def figure(value: float | None) -> str:
    """Three or four digits that mean something, thousands set apart."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.3g}"


def _spread(values: Sequence[float]) -> str:
    return f" ({figure(min(values))} to {figure(max(values))})" if len(values) > 1 else ""


def _cells(row: Row) -> tuple[str, ...]:
    unit = f", {row.unit}" if row.unit else ""
    return (
        f"{row.name}{unit}",
        figure(row.value) + _spread(row.values),
        row.peer or "",
        figure(row.peer_value) + _spread(row.peer_values) if row.peer_values else "",
        figure(row.ratio),
        row.target or "",
        str(len(row.values or row.peer_values)),
    )


def as_table(rows: Sequence[Row]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right" if column in {"Stratalog", "peer's", "ratio", "runs"} else "left")
    for row in rows:
        better = row.ratio is not None and row.ratio >= 1
        table.add_row(*_cells(row), style=None if row.ratio is None else "green" if better else "yellow")
    return table


def as_markdown(outcome: Outcome) -> str:
    found = outcome.machine
    host = f"{found['cores']} cores ({found['cpu']}), {found['memory_mib']} MiB"
    lines = [
        "# Benchmark",
        "",
        f"{found['date']}, commit {found['commit']}, {host}, Linux {found['kernel']}, Python {found['python']},",
        f"hot path {found['hot_path']}.",
        f"Server and client share the cores. Medians of {outcome.rounds} interleaved runs of {outcome.seconds:g} s,",
        "range in brackets. **A ratio above 1 means that Stratalog is better**, for times, CPU, memory too. How it is",
        "measured: [docs/benchmarks.md](../../docs/benchmarks.md).",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|--:|---|--:|--:|---|--:|",
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in outcome.rows]
    for title, reasons in (("Skipped", outcome.skipped), ("Failed", outcome.failed)):
        if reasons:
            lines += ["", f"{title}:", "", *(f"* {name}: {reason.splitlines()[0]}" for name, reason in reasons.items())]
    return "\n".join(lines) + "\n"


def write(outcome: Outcome, folder: Path, *, is_whole: bool) -> Path:
    """`latest.*` is always one whole run, so that its rows may be compared; some cells alone go to `partial.*`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "latest" if is_whole else "partial"
    rows = [row.as_json() for row in outcome.rows]
    (folder / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    page = folder / f"{name}.md"
    page.write_text(as_markdown(outcome), encoding="utf-8")
    return page
