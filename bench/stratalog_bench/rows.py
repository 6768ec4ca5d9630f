"""What a measurement is called, how medians become a ratio, and how systems take turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Better = Literal["higher", "lower"]
Measurement = Mapping[str, Any]


@dataclass(slots=True)
class Row:
    """One line of the result. `ratio` above 1 always means that Stratalog is better."""

    name: str
    unit: str
    better: Better
    values: list[float]
    peer: str | None = None
    peer_values: list[float] = field(default_factory=list)
    target: str | None = None
    note: str | None = None

    @property
    def value(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def peer_value(self) -> float | None:
        return statistics.median(self.peer_values) if self.peer_values else None

    @property
    def ratio(self) -> float | None:
        value, peer_value = self.value, self.peer_value
        if value is None or peer_value is None:
            return None
        over, under = (value, peer_value) if self.better == "higher" else (peer_value, value)
        return over / under if under else None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": _significant(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": _significant(self.peer_value),
            "ratio": _significant(self.ratio),
            "runs": len(self.values or self.peer_values),
            "better": self.better,
            "values": [_significant(value) for value in self.values],
            "peer_values": [_significant(value) for value in self.peer_values],
            "target": self.target,
            "note": self.note,
        }


def _significant(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def take_turns(systems: Mapping[str, Callable[[], Measurement]], rounds: int) -> dict[str, list[Measurement]]:
    """Runs each system once per round, the order turned around every other round, so that none always goes first."""
    results: dict[str, list[Measurement]] = {name: [] for name in systems}
    for number in range(rounds):
        order = list(systems) if number % 2 == 0 else list(reversed(systems))
        for name in order:
            results[name].append(systems[name]())
    return results


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a measurement that is worth a row."""

    key: str
    title: str
    unit: str
    better: Better
    target: str | None = None
    peers: Sequence[str] | None = None
    """Only beside these peers; None: beside all."""


OURS = "stratalog"


def compare(name: str, results: Mapping[str, Sequence[Measurement]], metrics: Sequence[Metric]) -> list[Row]:
    """A row for each metric and each peer. Without our own results the peers are still told."""

    def values(system: str, key: str) -> list[float]:
        return [float(run[key]) for run in results.get(system, []) if key in run]

    rows = []
    peers = [system for system in results if system != OURS] or [None]
    for metric in metrics:
        for peer in peers:
            if metric.peers is not None and peer not in metric.peers:
                continue
            peer_values = values(peer, metric.key) if peer else []
            title = f"{name}: {metric.title}"
            row = Row(title, metric.unit, metric.better, values(OURS, metric.key), peer, peer_values, metric.target)
            if row.values or row.peer_values:
                rows.append(row)
    return rows
