"""Metrics: plain integers that the owner counts, read when somebody asks.

A room declares what it counts as a slotted dataclass and counts with `stats.appends += 1`, which is all the hot path
pays. Whoever puts the process together registers the object:

    @dataclass(slots=True)
    class UploadStats:
        chunks: int = counter("Chunk objects put.")
        bytes: int = counter("Bytes put into the object store.")
        in_flight_bytes: int = gauge("Bytes of uploads in flight.")
        duration: Histogram = field(default_factory=Histogram, metadata=histogram("Time of one upload."))

    registry.add("stratalog_upload", stats)        ->  stratalog_upload_chunks_total, ..._in_flight_bytes, ...

Invariant: a metric once registered never vanishes from the page: if reading it fails it reads NaN, and
`stratalog_metric_read_failures_total` counts that (F88). Each registered metric can be listed (`descriptions`), so that
a test can demand that every one of them moves.

Thread: `add` and `register` at start; `render` on the loop or any thread.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.logs import logger

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = Mapping[str, str]
Value: TypeAlias = "float | Histogram"
Reading: TypeAlias = "Value | Mapping[tuple[str, ...], Value]"
"""One value, or a value per combination of label values."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"stratalog_[a-z][a-z0-9_]*")


def counter(help: str) -> int:
    """A field of a stat object that only grows. Name it without `_total`."""
    declared: int = field(default=0, metadata={"kind": "counter", "help": help})
    return declared


def gauge(help: str) -> int:
    """A field of a stat object that goes up and down."""
    declared: int = field(default=0, metadata={"kind": "gauge", "help": help})
    return declared


def histogram(help: str, unit: Literal["seconds", "bytes"] = "seconds") -> dict[str, str]:
    """Metadata of a field that is a Histogram; times are observed in microseconds and exported in seconds."""
    return {"kind": "histogram", "help": help, "unit": unit}


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """One family of the page. A counter's name is written with its `_total`."""

    name: str
    kind: Kind
    help: str
    label_names: tuple[str, ...]


class _Source:
    __slots__ = ("constant", "read")

    def __init__(self, constant: Labels, read: Callable[[], Reading]) -> None:
        self.constant = constant
        self.read = read


class MetricRegistry:
    """All metrics of one process. Also a prometheus Collector."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[MetricDescription, list[_Source]]] = {}
        self._failures: dict[tuple[str, ...], int] = {}
        self._refreshers: list[Callable[[], object]] = []
        self._log = logger(__name__)
        self.register(
            "stratalog_metric_read_failures_total",
            "counter",
            "Times a metric could not be read and showed NaN.",
            lambda: dict(self._failures),
            label_names=("metric",),
        )

    # Registering -------------------------------------------------------------------------------------------------
    def add(self, prefix: str, stats: object, labels: Labels | None = None) -> None:
        """Export every declared field of a stat object. The same prefix may be added again with other label values."""
        if not dataclasses.is_dataclass(stats) or isinstance(stats, type):
            raise TypeError(f"{prefix}: expected an instance of a dataclass with counter/gauge/histogram fields")
        for declared in dataclasses.fields(stats):
            kind = declared.metadata.get("kind")
            if kind is None:
                continue
            name = f"{prefix}_{declared.name}"
            if kind == "counter":
                name += "_total"
            unit = declared.metadata.get("unit")
            if unit and not name.endswith(unit):
                name += f"_{unit}"
            read = _reader_of(stats, declared.name)
            self.register(name, kind, declared.metadata["help"], read, constant=labels)

    def register(
        self,
        name: str,
        kind: Kind,
        help: str,
        read: Callable[[], Reading],
        *,
        label_names: tuple[str, ...] = (),
        constant: Labels | None = None,
    ) -> None:
        """Export what `read` returns: one value, or with `label_names` a value per tuple of label values.

        `constant` are labels with a fixed value; sources of one name must have the same label names.
        """
        if not _NAME.fullmatch(name) or (kind == "counter") != name.endswith("_total"):
            raise ValueError(f"metric {name!r}: the name must begin with stratalog_, and only counters end in _total")
        fixed = dict(constant or {})
        description = MetricDescription(name, kind, help, (*fixed, *label_names))
        known, sources = self._families.setdefault(name, (description, []))
        if known.kind != kind or known.label_names != description.label_names:
            raise ValueError(f"metric {name}: registered before as a {known.kind} with labels {known.label_names}")
        if any(source.constant == fixed for source in sources):
            raise ValueError(f"metric {name} {fixed}: registered twice")
        sources.append(_Source(fixed, read))

    def refresh_with(self, refresh: Callable[[], object]) -> None:
        """Call `refresh` before each reading: for gauges that are cheaper to work out when asked than to keep."""
        self._refreshers.append(refresh)

    # Reading -----------------------------------------------------------------------------------------------------
    def descriptions(self) -> tuple[MetricDescription, ...]:
        return tuple(description for description, _ in self._families.values())

    def values(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Every metric's present values by label values; of a histogram the count. For tests and the status page."""
        self._refresh()
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for description, sources in list(self._families.values()):
            rows = found[description.name] = {}
            for labels, value in self._read_all(description, sources):
                rows[labels] = float(value.count) if isinstance(value, Histogram) else float(value)
        return found

    def collect(self) -> Iterator[Metric]:
        """The prometheus_client Collector's method."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self._refresh()
        # The failures come last, so that the same page already tells of those met while it was made.
        families = sorted(self._families.values(), key=lambda family: "read_failures" in family[0].name)
        for description, sources in families:
            names = list(description.label_names)
            if description.kind == "histogram":
                histograms = HistogramMetricFamily(description.name, description.help, labels=names)
                for labels, value in self._read_all(description, sources):
                    if isinstance(value, Histogram):
                        histograms.add_metric(list(labels), value.cumulative(), value.total * value.scale)
                    else:
                        histograms.add_metric(list(labels), [("+Inf", value)], value)
                yield histograms
                continue
            family = CounterMetricFamily if description.kind == "counter" else GaugeMetricFamily
            plain = family(description.name, description.help, labels=names)
            for labels, value in self._read_all(description, sources):
                plain.add_metric(list(labels), value.count if isinstance(value, Histogram) else value)
            yield plain

    def render(self) -> bytes:
        """The page in Prometheus's text format. Cost: a few microseconds per value; imports prometheus_client once."""
        from prometheus_client import CollectorRegistry, generate_latest

        page = CollectorRegistry(auto_describe=False)
        page.register(cast(Any, self))
        return bytes(generate_latest(page))

    def describe(self) -> list[Metric]:
        """Keeps prometheus_client from collecting at registration."""
        return []

    def _refresh(self) -> None:
        for refresh in self._refreshers:
            try:
                refresh()
            except Exception as error:  # the other metrics are still worth showing
                self._failed(getattr(refresh, "__qualname__", "refresh"), error)

    def _failed(self, what: str, error: Exception) -> None:
        """Count a failure; its first time it also gets a line in the log."""
        if (what,) not in self._failures:
            self._log.warning("metric cannot be read", metric=what, error=error)
        self._failures[(what,)] = self._failures.get((what,), 0) + 1

    def _read_all(
        self, description: MetricDescription, sources: list[_Source]
    ) -> Iterator[tuple[tuple[str, ...], Value]]:
        for source in sources:
            fixed = tuple(source.constant.values())
            try:
                reading = source.read()
            except Exception as error:  # a page with a hole in it is worth more than no page
                self._failed(description.name, error)
                free = len(description.label_names) - len(fixed)
                yield (*fixed, *("",) * free), math.nan
                continue
            if isinstance(reading, Mapping):
                for labels, value in reading.items():
                    yield (*fixed, *labels), value
            else:
                yield fixed, reading


def _reader_of(stats: object, name: str) -> Callable[[], Reading]:
    def read() -> Reading:
        value: Reading = getattr(stats, name)
        return value

    return read
