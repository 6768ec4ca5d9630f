"""Metrics: plain integers that the owner counts, read when the page is requested. A package declares what it counts as
a slotted dataclass and counts with `stats.appends += 1`, which is all the hot path pays. The code that assembles the
process registers the object:

    @dataclass(slots=True)
    class UploadStats:
        chunks: int = counter("Chunk objects put.")
        bytes: int = counter("Bytes put into the object store.")
        in_flight_bytes: int = gauge("Bytes of uploads in flight.")
        duration: Histogram = field(default_factory=Histogram, metadata=histogram("Time of one upload."))

    registry.add("stratalog_upload", stats)        ->  stratalog_upload_chunks_total, ..._in_flight_bytes, ...

Names follow Prometheus's rules, and registration checks them: base units (seconds, bytes), the unit at the end and
before `_total`, no word twice. A field in milliseconds (`oldest_ms`) or microseconds (`busy_us`) is shown in seconds.
Names begin with `stratalog_`; metrics that every process has begin with `process_`, as dashboards for any program
expect. The page is Prometheus's text format, version 0.0.4; a test reads it with Prometheus's own parser.

Invariant: a metric once registered never vanishes from the page: if reading it fails it reads NaN, and
`stratalog_metric_read_failures_total` counts that (F88). Each registered metric can be listed (`descriptions`), so that
a test can demand that every one of them moves.

Thread: `add` and `register` at start; `page` and `values` on the loop.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from stratalog.event_loop.fair_turns import FairTurns
from stratalog.telemetry.histogram import Histogram
from stratalog.telemetry.logs import logger

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


@functools.cache
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


_HEAD: Final = "# HELP {name} {help}\n# TYPE {name} {kind}\n"
"""Before the lines of one metric. A help text has no line break and no backslash."""

_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _rows_of(name: str, label_names: Iterable[str], labels: Iterable[str], value: float | Histogram) -> list[str]:
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


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = Mapping[str, str]
Value: TypeAlias = "float | Histogram"
Reading: TypeAlias = "Value | Mapping[tuple[str, ...], Value]"
"""One value, or a value per combination of label values."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ROWS_PER_SLICE: Final = 128
"""Lines of the page made between two turns of the loop: about half a millisecond."""


def counter(help: str) -> Any:
    """A field of a stat object that only grows. Name it without `_total`. Of any type, as `dataclasses.field` is: what
    is compiled would take a promised int at its word."""
    return field(default=0, metadata={"kind": "counter", "help": help})


def counters(help: str, label: str) -> dict[str, str]:
    """Metadata of a dictionary with a count for each value of a label, all of which it has from its start."""
    return {"kind": "counter", "help": help, "label": label}


def gauge(help: str) -> Any:
    """A field of a stat object that goes up and down. One in `_ms` or `_us` is shown in seconds."""
    return field(default=0, metadata={"kind": "gauge", "help": help})


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
    """All metrics of one process."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[MetricDescription, list[_Source]]] = {}
        self._failures: dict[tuple[str, ...], int] = {}
        self._refreshers: list[Callable[[], object]] = []
        self._surveys: list[Callable[[], Awaitable[object]]] = []
        self._turns = FairTurns()
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
            name, scale = in_base_units(f"{prefix}_{declared.name}")
            unit = declared.metadata.get("unit")
            if unit and not name.endswith(unit):
                name += f"_{unit}"
            if kind == "counter":
                name += "_total"
            read = _reader_of(stats, declared.name, scale)
            label = declared.metadata.get("label")
            names = () if label is None else (label,)
            self.register(name, kind, declared.metadata["help"], read, label_names=names, constant=labels)

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
        if (fault := fault_of(name, is_counter=kind == "counter")) is not None:
            raise ValueError(f"metric {name!r}: {fault}")
        fixed = dict(constant or {})
        description = MetricDescription(name, kind, help, (*fixed, *label_names))
        known, sources = self._families.setdefault(name, (description, []))
        if known.kind != kind or known.label_names != description.label_names:
            raise ValueError(f"metric {name}: registered before as a {known.kind} with labels {known.label_names}")
        if any(source.constant == fixed for source in sources):
            raise ValueError(f"metric {name} {fixed}: registered twice")
        sources.append(_Source(fixed, read))

    def refresh_with(self, refresh: Callable[[], object]) -> None:
        """Call `refresh` before each reading: for gauges that are cheaper to work out when asked than to keep.
        It is one step of the loop: what looks at everything there is belongs in a survey."""
        self._refreshers.append(refresh)

    def survey_with(self, survey: Callable[[], Awaitable[object]]) -> None:
        """Await `survey` before each page: for what grows with shards, segments or groups. It goes in slices, and the
        metrics that it serves read what it found."""
        self._surveys.append(survey)

    # Reading -----------------------------------------------------------------------------------------------------
    def descriptions(self) -> tuple[MetricDescription, ...]:
        return tuple(description for description, _ in self._families.values())

    def values(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Every metric's present values by label values; of a histogram the count. What surveys find is as old as the
        last page. For tests."""
        self._refresh()
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for description, sources in list(self._families.values()):
            rows = found[description.name] = {}
            for labels, value in self._read_all(description, sources):
                rows[labels] = float(value.count) if isinstance(value, Histogram) else float(value)
        return found

    async def page(self) -> bytes:
        """The page in Prometheus's text format.

        Cost: some microseconds a line. The loop serves others between slices. If several pages are requested at once,
        each turn makes a slice of only one of them, so that no scrape holds up the node."""
        for survey in self._surveys:
            await self._turns.next()
            try:
                await survey()
            except Exception as error:  # the other metrics are still worth showing
                self._failed(getattr(survey, "__qualname__", "survey"), error)
        self._refresh()
        await self._turns.next()
        lines: list[str] = []
        made = 0
        # The failures come last, so that the same page already tells of those met while it was made.
        for description, sources in sorted(self._families.values(), key=lambda one: "read_failures" in one[0].name):
            lines.append(_HEAD.format(name=description.name, help=description.help, kind=description.kind))
            for labels, value in self._read_all(description, sources):
                rows = _rows_of(description.name, description.label_names, labels, value)
                lines += rows
                made += len(rows)
                if made >= _ROWS_PER_SLICE:
                    made = 0
                    await self._turns.next()
        return "".join(lines).encode()

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
                for labels, value in list(reading.items()):
                    yield (*fixed, *labels), value
            else:
                yield fixed, reading


def _reader_of(stats: object, name: str, scale: float) -> Callable[[], Reading]:
    def read() -> Reading:
        value: Reading | dict[str, int] = getattr(stats, name)
        return {(one,): count for one, count in value.items()} if isinstance(value, dict) else value

    def read_scaled() -> Reading:
        value: int = getattr(stats, name)
        return value * scale

    return read if scale == 1 else read_scaled
