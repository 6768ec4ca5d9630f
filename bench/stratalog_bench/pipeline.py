"""`make bench-pipeline`: the Spark data source beside plain Spark on the same records, and Spark's Kafka source.

    python -m stratalog_bench.pipeline [--mib N] [--runs N] [--only NAME]

Every cell counts the records and sums a checksum of each value, so all bytes of all values are touched. Two Spark
threads. CPU is that of the whole tree of processes that reads (driver, JVM, Python workers), so that a figure per core
can be told on a machine that others use. Then the cold tier as it was uploaded, compacted, and packed
(`pipeline_cold`). Writes `bench/results/pipeline.json` and `pipeline.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.objects import open_store
from stratalog_bench import kafka_peer, pipeline_cold
from support.cold_data import ColdShard

ROOT = Path(__file__).resolve().parents[2]
CACHE, PEERS, RESULTS = ROOT / ".cache" / "peers", ROOT / "bench" / "peers", ROOT / "bench" / "results"
VALUE_BYTES, RECORDS_PER_BATCH, CHUNK_BYTES = 1_024, 32, 8 << 20
THREADS = 2
KAFKA_JARS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
FIRST_MS = 1_700_000_000_000


@dataclass
class Cell:
    name: str
    records: int
    mib: float
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    @property
    def mib_per_core_s(self) -> float:
        return self.mib / statistics.median(self.cpu_s)

    @property
    def records_per_core_s(self) -> float:
        return self.records / statistics.median(self.cpu_s)


# The same records in each form ----------------------------------------------------------------------------------------
def values(count: int) -> Iterator[bytes]:
    """Text that does not compress to nothing."""
    words = random.Random(1)
    blob = "".join(words.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=VALUE_BYTES * 64)).encode()
    for number in range(count):
        start = (number * 131) % (len(blob) - VALUE_BYTES)
        yield b"%012d" % number + blob[start : start + VALUE_BYTES - 12]


def write_bucket(folder: Path, count: int, codec: int) -> None:
    """One shard: sealed segments of eight chunks."""

    async def fill() -> None:
        store = open_store(str(folder))
        shard = ColdShard(store)
        parts: list[list[bytes]] = [[]]
        size, base, batch = 0, 0, []
        for number, value in enumerate(values(count)):
            batch.append(Record(number, FIRST_MS + number, b"%012d" % number, value))
            if len(batch) == RECORDS_PER_BATCH or number == count - 1:
                packed = encode_batch(batch, base_offset=base, epoch=len(shard.segments), compression=codec)
                parts[-1].append(packed)
                size, base, batch = size + len(packed), number + 1, []
                if size >= CHUNK_BYTES:
                    size = 0
                    if len(parts) == 8:
                        await shard.add(parts)
                        parts = []
                    parts.append([])
        if any(parts):
            await shard.add([part for part in parts if part])
        await store.close()

    asyncio.run(fill())


def write_tables(folder: Path, count: int) -> None:
    """Parquet without compression, in as many files as there are chunks, and JSON lines."""
    (folder / "parquet").mkdir()
    (folder / "json").mkdir()
    per_file = CHUNK_BYTES // VALUE_BYTES
    rows: list[bytes] = []
    for number, value in enumerate(values(count)):
        rows.append(value)
        if len(rows) == per_file or number == count - 1:
            first = number + 1 - len(rows)
            name = f"{first:012d}"
            table = pa.table(
                {
                    "offset": pa.array(range(first, number + 1), pa.int64()),
                    "timestamp": pa.array(range(FIRST_MS + first, FIRST_MS + number + 1), pa.timestamp("ms", "UTC")),
                    "key": pa.array([row[:12] for row in rows], pa.binary()),
                    "value": pa.array(rows, pa.binary()),
                }
            )
            pq.write_table(table, folder / "parquet" / f"{name}.parquet", compression="none", use_dictionary=False)
            with (folder / "json" / f"{name}.json").open("wb") as out:
                for place, row in enumerate(rows, first):
                    out.write(b'{"offset":%d,"key":"%s","value":"%s"}\n' % (place, row[:12], row))
            rows = []


def produce(servers: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 64 << 10, "log_level": 2})
    for number, value in enumerate(values(count)):
        while True:
            try:
                producer.produce(topic, value, b"%012d" % number, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0, "the Kafka took all records"


# Measuring ------------------------------------------------------------------------------------------------------------
def cpu_seconds() -> float:
    """Of this process and all below it, ended ones included."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            if process.name() == "java" and "kafka.Kafka" in process.cmdline():
                continue  # the broker is not the reader
            total += sum(process.cpu_times()[:4])
    return total


def measure(cell: Cell, work: Callable[[], int], runs: int) -> Cell:
    work()  # once to warm up
    for _ in range(runs):
        wall, cpu = time.monotonic(), cpu_seconds()
        found = work()
        cell.wall_s.append(time.monotonic() - wall)
        cell.cpu_s.append(cpu_seconds() - cpu)
        assert found == cell.records, f"{cell.name}: {found} of {cell.records} records"
    print(f"{cell.name:34} {cell.mib_per_core_s:8.0f} MiB/s and {cell.records_per_core_s:10,.0f} records/s per core")
    return cell


def touched(frame: Any) -> int:
    from pyspark.sql import functions as f

    row = frame.select(f.count("*").alias("count"), f.sum(f.crc32("value")).alias("sum")).collect()[0]
    assert row.sum, "every value was looked at"
    return int(row["count"])


def by_consumer(servers: str, topic: str, count: int) -> int:
    import zlib

    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "fetch.message.max.bytes": 8 << 20})
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = total = 0
    while seen < count:
        for message in consumer.consume(10_000, 5.0):
            total += zlib.crc32(message.value())
            seen += 1
    consumer.close()
    return seen


# Cells ----------------------------------------------------------------------------------------------------------------
def kafka_jars() -> list[str]:
    """Spark's Kafka source, from Maven; empty when it cannot be had."""
    folder = CACHE / "spark-kafka-4.2.0"
    if len(list(folder.glob("*.jar"))) < len(KAFKA_JARS):
        pom = CACHE / "spark-pom" / "pom.xml"
        pom.parent.mkdir(parents=True, exist_ok=True)
        pom.write_text((PEERS / "spark-kafka.xml").read_text(encoding="utf-8"), encoding="utf-8")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command += [f"-DincludeArtifactIds={','.join(KAFKA_JARS)}", f"-DoutputDirectory={folder}"]
        if subprocess.run(command, check=False, timeout=900).returncode:
            return []
    return sorted(map(str, folder.glob("*.jar")))


def run(arguments: argparse.Namespace, folder: Path) -> tuple[list[Cell], list[pipeline_cold.ColdRow]]:
    from stratalog_pipeline.jobs.session import local_session

    count = arguments.mib * (1 << 20) // VALUE_BYTES
    names = ("stratalog", "stratalog lz4", "parquet", "json", "kafka", "cold tier")
    wanted = [name for name in names if arguments.only in name]
    has_kafka = "kafka" in wanted and kafka_peer.missing() is None
    jars = kafka_jars() if has_kafka else []
    spark = local_session("bench", threads=THREADS, memory="1500m", folder=folder, jars=jars)
    found: list[Cell] = []

    def cell(name: str, work: Callable[[], int]) -> None:
        found.append(measure(Cell(name, count, float(arguments.mib)), work, arguments.runs))

    schema = "key binary, value binary"
    for name, codec in (("stratalog", 0), ("stratalog lz4", 3)):
        if name in wanted:
            place = str(folder / name.replace(" ", "-"))
            write_bucket(Path(place), count, codec)
            source = spark.read.format("stratalog").schema(schema)
            cell(f"{name}, one shard", lambda source=source, place=place: touched(source.load(place)))
    if {"parquet", "json"} & {*wanted}:
        write_tables(folder, count)
    if "parquet" in wanted:
        cell("spark, parquet", lambda: touched(spark.read.parquet(str(folder / "parquet"))))
    if "json" in wanted:
        lines = spark.read.schema("offset long, key string, value string")
        cell("spark, JSON lines", lambda: touched(lines.json(str(folder / "json"))))
    if has_kafka:
        _kafka_cells(spark, folder, count, cell, has_source=bool(jars))
    cold = _cold_rows(spark, folder, arguments.runs) if "cold tier" in wanted else []
    spark.stop()
    return found, cold


def _cold_rows(spark: Any, folder: Path, runs: int) -> list[pipeline_cold.ColdRow]:
    from pyspark.sql import functions as f

    source = spark.read.format("stratalog").schema("key binary, value binary")

    def find(bucket: str, key: bytes) -> int:
        return int(source.load(bucket).where(f.col("key") == f.lit(key)).count())

    cells = pipeline_cold.ColdCells(folder, lambda bucket: touched(source.load(bucket)), find, cpu_seconds)
    cells.run(runs)
    return cells.rows


def _kafka_cells(
    spark: Any, folder: Path, count: int, cell: Callable[[str, Callable[[], int]], None], *, has_source: bool
) -> None:
    installed = kafka_peer.install(PEERS, CACHE)
    port = kafka_peer.prepare(installed, folder / "kafka")
    broker = kafka_peer.run(installed, folder / "kafka", port)
    try:
        produce(broker.address, "bench", count)
        if has_source:
            # Its own way to read one partition by several tasks.
            source = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.address)
            source = source.option("subscribe", "bench").option("minPartitions", "16")
            cell("spark, its Kafka source (4.2.0)", lambda: touched(source.load().select("key", "value")))
        cell("a Python consumer (librdkafka)", lambda: by_consumer(broker.address, "bench", count))
    finally:
        broker.kill()


def report(cells: list[Cell], arguments: argparse.Namespace) -> list[str]:
    ours = next((cell for cell in cells if cell.name.startswith("stratalog,")), cells[0])
    lines = [
        "# The pipeline's benchmark",
        "",
        f"{arguments.mib} MiB of values of {VALUE_BYTES} bytes, one shard, {THREADS} Spark threads, medians of "
        f"{arguments.runs} runs. CPU is that of all processes that read; the broker's is not counted. "
        f"Python {platform.python_version()}. Bytes served by storage nodes to the source: none, for none runs.",
        "",
        "| what | MiB/s per core | records/s per core | MiB/s, wall | ours to it, per core |",
        "|---|---|---|---|---|",
    ]
    for cell in cells:
        wall = cell.mib / statistics.median(cell.wall_s)
        ratio = ours.mib_per_core_s / cell.mib_per_core_s
        lines.append(
            f"| {cell.name} | {cell.mib_per_core_s:.0f} | {cell.records_per_core_s:,.0f} | {wall:.0f} | {ratio:.2f} |"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-pipeline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=512, metavar="N", help="of values")
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--only", default="", metavar="NAME", help="cells whose name has this; results are only shown")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder:
        cells, cold = run(arguments, Path(folder))
    lines = [*(report(cells, arguments) if cells else ()), *(pipeline_cold.report(cold) if cold else ()), ""]
    text = "\n".join(lines)
    print(text)
    if not arguments.only:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "pipeline.md").write_text(text, encoding="utf-8")
        told = {"reads": [asdict(cell) for cell in cells], "cold tier": [asdict(row) for row in cold]}
        (RESULTS / "pipeline.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
