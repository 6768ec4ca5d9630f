"""Metrics: plain counts, read when asked; none ever vanishes (F88)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stratalog.telemetry.histogram import Histogram, size_histogram
from stratalog.telemetry.metrics import Kind, MetricRegistry, counter, counters, gauge, histogram
from stratalog.telemetry.process_stats import add_process_metrics
from support.loop_turns import Turns


@dataclass(slots=True)
class PumpStats:
    strokes: int = counter("Strokes made.")
    pressure_bytes: int = gauge("Pressure now.")
    duration: Histogram = field(default_factory=Histogram, metadata=histogram("Time of a stroke."))
    load: Histogram = field(default_factory=size_histogram, metadata=histogram("Size of a stroke.", "bytes"))
    leaks: dict[str, int] = field(
        default_factory=lambda: {"top": 0, "bottom": 0}, metadata=counters("Leaks found.", "place")
    )
    not_exported: int = 7


def page(registry: MetricRegistry) -> dict[str, dict[tuple[str, ...], float]]:
    """The text page, parsed: sample name -> label values -> value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(asyncio.run(registry.page()).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_what_the_owner_counts_is_on_the_page() -> None:
    registry, stats = MetricRegistry(), PumpStats()
    registry.add("stratalog_pump", stats)

    stats.strokes += 3
    stats.leaks["top"] += 2
    stats.pressure_bytes = 5
    stats.duration.observe(1_500)
    stats.load.observe(70_000)

    shown = page(registry)
    assert shown["stratalog_pump_strokes_total"] == {(): 3}
    assert shown["stratalog_pump_leaks_total"] == {("top",): 2, ("bottom",): 0}
    assert shown["stratalog_pump_pressure_bytes"] == {(): 5}
    assert shown["stratalog_pump_duration_seconds_count"] == {(): 1}
    assert shown["stratalog_pump_duration_seconds_sum"] == {(): 0.0015}
    assert shown["stratalog_pump_duration_seconds_bucket"]["0.0025",] == 1
    assert shown["stratalog_pump_duration_seconds_bucket"]["0.001",] == 0
    assert shown["stratalog_pump_load_bytes_sum"] == {(): 70_000}
    assert not [name for name in shown if "not_exported" in name]


def test_one_name_may_have_several_owners_with_other_labels() -> None:
    registry = MetricRegistry()
    left, right = PumpStats(strokes=1), PumpStats(strokes=2)
    registry.add("stratalog_pump", left, {"side": "left"})
    registry.add("stratalog_pump", right, {"side": "right"})

    assert page(registry)["stratalog_pump_strokes_total"] == {("left",): 1, ("right",): 2}


def test_values_with_labels_come_from_one_reading() -> None:
    registry = MetricRegistry()
    registry.register("stratalog_q", "gauge", "q", lambda: {("a", "b"): 1.0, ("c", "d"): 2.0}, label_names=("x", "y"))

    assert page(registry)["stratalog_q"] == {("a", "b"): 1, ("c", "d"): 2}


@pytest.mark.fault("metric-moves-gauge-fails")
def test_a_metric_that_cannot_be_read_stays_on_the_page_and_is_counted() -> None:
    registry = MetricRegistry()
    registry.register("stratalog_broken", "gauge", "b", lambda: 1 / 0)
    registry.register("stratalog_whole", "gauge", "w", lambda: 4)

    first = page(registry)
    second = page(registry)

    assert math.isnan(first["stratalog_broken"][()])
    assert first["stratalog_whole"] == {(): 4}
    assert first["stratalog_metric_read_failures_total"] == {("stratalog_broken",): 1}
    assert second["stratalog_metric_read_failures_total"] == {("stratalog_broken",): 2}


def test_a_failing_refresh_spoils_no_metric() -> None:
    registry = MetricRegistry()
    stats = PumpStats()

    def refresh() -> None:
        stats.pressure_bytes += 1

    def fail() -> None:
        raise OSError("gone")

    registry.add("stratalog_pump", stats)
    registry.refresh_with(fail)
    registry.refresh_with(refresh)

    assert page(registry)["stratalog_pump_pressure_bytes"] == {(): 1}
    assert sum(registry.values()["stratalog_metric_read_failures_total"].values()) == 2


def test_every_registered_metric_is_described_and_can_be_seen_to_move() -> None:
    registry, stats = MetricRegistry(), PumpStats()
    registry.add("stratalog_pump", stats)
    before = registry.values()
    stats.strokes += 1
    stats.leaks["top"] += 1
    stats.pressure_bytes += 1
    stats.duration.observe(1)
    stats.load.observe(1)
    registry.register("stratalog_broken", "gauge", "b", lambda: 1 / 0)
    after = registry.values()
    again = registry.values()

    names = {description.name for description in registry.descriptions()}
    assert names == again.keys()
    moved = {name for name in before if before[name] != again[name]}
    assert moved == before.keys(), f"these did not move: {before.keys() - moved}"
    assert after["stratalog_pump_strokes_total"] == {(): 1}


@pytest.mark.parametrize(
    "register",
    [
        lambda r: r.register("pump_x", "gauge", "x", lambda: 1),
        lambda r: r.register("stratalog_x", "counter", "x", lambda: 1),
        lambda r: r.register("stratalog_x_total", "gauge", "x", lambda: 1),
        lambda r: [r.register("stratalog_x", "gauge", "x", lambda: 1) for _ in range(2)],
        lambda r: [r.add("stratalog_p", PumpStats(), labels) for labels in ({"a": "1"}, {"b": "1"})],
    ],
    ids=["foreign name", "counter without total", "gauge with total", "twice", "other labels"],
)
def test_a_metric_that_would_confuse_is_refused(register: Callable[[MetricRegistry], object]) -> None:
    with pytest.raises(ValueError, match="metric"):
        register(MetricRegistry())


def test_only_instances_of_dataclasses_can_be_added() -> None:
    with pytest.raises(TypeError):
        MetricRegistry().add("stratalog_x", PumpStats)


def test_the_process_shows_what_it_costs_and_what_it_is() -> None:
    registry = MetricRegistry()
    add_process_metrics(registry)

    shown = page(registry)

    assert shown["process_resident_memory_bytes"][()] > 1 << 20
    assert shown["process_virtual_memory_bytes"][()] >= shown["process_resident_memory_bytes"][()]
    assert shown["process_cpu_seconds_total"][()] > 0
    assert shown["process_max_fds"][()] >= shown["process_open_fds"][()] >= 3
    assert shown["process_threads"][()] >= 1
    assert shown["process_start_time_seconds"][()] == pytest.approx(psutil.Process().create_time(), abs=2)
    assert list(shown["stratalog_build_info"].values()) == [1]


@pytest.mark.parametrize(
    "name",
    [
        "stratalog_groups_groups",
        "stratalog_cold_read_reads_total",
        "stratalog_flush_microseconds_total",
        "stratalog_tier_store_away_ms",
        "stratalog_tier_bytes_put_total",
        "process_seconds_started",
        "other_requests_total",
    ],
)
def test_a_name_that_stutters_or_has_another_unit_is_refused(name: str) -> None:
    kind: Kind = "counter" if name.endswith("_total") else "gauge"
    with pytest.raises(ValueError, match=name):
        MetricRegistry().register(name, kind, "x", lambda: 0)


def test_times_kept_in_other_units_are_shown_in_seconds() -> None:
    @dataclass(slots=True)
    class Clocks:
        away_ms: int = gauge("Away.")
        busy_us: int = counter("Busy.")

    registry = MetricRegistry()
    registry.add("stratalog_clock", Clocks(1_500, 2_500_000))

    shown = page(registry)
    assert shown["stratalog_clock_away_seconds"] == {(): 1.5}
    assert shown["stratalog_clock_busy_seconds_total"] == {(): 2.5}


@given(st.text(), st.floats())
def test_any_label_and_any_number_are_read_back_as_they_were(label: str, number: float) -> None:
    registry = MetricRegistry()
    registry.register("stratalog_any", "gauge", "a", lambda: {(label,): number}, label_names=("of",))

    (((read,), value),) = page(registry)["stratalog_any"].items()
    assert read == label
    assert value == number or (math.isnan(value) and math.isnan(number))


async def test_a_page_of_any_length_lets_others_run_between_its_slices() -> None:
    registry = MetricRegistry()
    rows = {(str(shard),): 1.0 for shard in range(100)}
    read = 0

    def reading() -> dict[tuple[str, ...], float]:
        nonlocal read
        read += len(rows)
        return rows

    for number in range(50):
        registry.register(f"stratalog_many{number}", "gauge", "m", reading, label_names=("shard",))

    async with Turns(lambda: read) as turns:
        pages = await asyncio.gather(*(registry.page() for _ in range(4)))

    assert read == 4 * 5_000 and len(set(pages)) == 1
    assert turns.most <= 300, "of several pages one goes on in a turn, and no further than a slice"


def test_a_survey_that_fails_spoils_no_metric() -> None:
    registry = MetricRegistry()
    registry.register("stratalog_whole", "gauge", "w", lambda: 4)

    async def survey() -> None:
        raise OSError("gone")

    registry.survey_with(survey)
    shown = page(registry)
    assert shown["stratalog_whole"] == {(): 4}
    assert sum(shown["stratalog_metric_read_failures_total"].values()) == 1


@given(st.lists(st.integers(0, 20_000_000)))
def test_a_histogram_counts_each_value_at_or_below_its_bound(values: list[int]) -> None:
    seen = Histogram()
    for value in values:
        seen.observe(value)

    for bound, (_, below) in zip(seen.bounds, seen.cumulative(), strict=False):
        assert below == sum(value <= bound for value in values)
    assert seen.cumulative()[-1] == ("+Inf", len(values))
    assert (seen.count, seen.total) == (len(values), sum(values))
