"""Compares a cold scan with raw ranged GETs of the same objects from the same store in the same process.

    python bench/cold_scan.py [--store URL ...] [--versitygw] [--mib 256] [--rounds 5] [--batch-kib 16]

Raw: ranges of 1 MiB, eight at a time, one after the other through all chunk objects; bytes are dropped unread.
Scan: one reader that continues where it ended, 1 MiB at a time; identity, continuity and every CRC are checked. Rounds
alternate; medians. Prints a table and one JSON line per store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import uvloop

from stratalog.formats.batches.record_batch import parse_header
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.formats.bucket.part import encode_part
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, Segment, SegmentIdentity, SegmentState
from stratalog.objects import ObjectStore, open_store
from stratalog_node.tier.cold.cold_limits import ColdReadLimits
from stratalog_node.tier.cold.cold_reader import ColdReader

MIB = 1 << 20
CHUNK_BYTES = 8 * MIB
RANGE_BYTES = MIB
PARALLEL = 8
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Scanned:
    """One pass: bytes, seconds of wall clock and of this process's CPU."""

    size_bytes: int
    wall_s: float
    cpu_s: float

    @property
    def mib_per_s(self) -> float:
        return self.size_bytes / self.wall_s / MIB


async def put_segment(store: ObjectStore, names: ObjectNames, total_bytes: int, batch_bytes: int) -> Segment:
    """An active segment whose committed parts are chunk objects of 8 MiB."""
    key = SegmentKey(uuid4(), 0, 0, 0)
    identity = SegmentIdentity(names.cluster_id, key.topic_id, "scan", 0, 0, 0, 0)
    payload = os.urandom(batch_bytes)
    parts: list[RemotePart] = []
    offset, digest = 0, EMPTY_DIGEST
    while offset * batch_bytes < total_bytes:
        batches = []
        for number in range(CHUNK_BYTES // batch_bytes):
            record = Record(offset + number, 1_700_000_000_000 + offset + number, None, payload)
            batches.append(encode_batch([record], base_offset=offset + number, epoch=0))
        headers = [parse_header(batch) for batch in batches]
        end = offset + len(batches)
        pieces, digest = encode_part(identity, offset, end, b"".join(batches), headers, digest, len(parts))
        object_key = names.chunk(key, offset, end, node_id=1, lock_epoch=1, attempt=len(parts))
        await store.put(object_key, pieces)
        parts.append(RemotePart(object_key, 0, sum(map(len, pieces)), offset, end))
        offset = end
    remote = RemoteCopy(RemoteState.PARTIAL, offset, tuple(parts))
    return Segment(key, SegmentState.ACTIVE, 1, (1,), (1,), 0, 0, remote=remote)


async def raw_pass(store: ObjectStore, parts: Sequence[RemotePart]) -> int:
    ranges: Iterator[tuple[str, int, int]] = (
        (part.object_key, start, min(start + RANGE_BYTES, part.size_bytes))
        for part in parts
        for start in range(0, part.size_bytes, RANGE_BYTES)
    )
    total = 0

    async def worker() -> None:
        nonlocal total
        for key, start, end in ranges:
            size_bytes = len(await store.get_range_view(key, start, end))
            total += size_bytes

    await asyncio.gather(*(worker() for _ in range(PARALLEL)))
    return total


async def scan_pass(store: ObjectStore, names: ObjectNames, segment: Segment) -> int:
    async def reload(_: SegmentKey) -> Segment | None:
        return segment

    reader = ColdReader(store, names, ColdReadLimits(bytes_per_s=None, max_concurrency=PARALLEL), reload)
    total = offset = 0
    try:
        while offset < segment.remote.commit_offset:
            pieces = await reader.read([segment], offset, MIB)
            total += sum(map(len, pieces))
            offset = _end_offset(pieces[-1])
    finally:
        await reader.close()
    return total


def _end_offset(piece: memoryview) -> int:
    """A consumer knows it from the last batch it got; batches here are of one size."""
    size = parse_header(piece).size_bytes
    return parse_header(piece, len(piece) - size).end_offset


async def measured(work: asyncio.Future[int] | object) -> Scanned:
    wall, cpu = time.perf_counter(), time.process_time()
    size_bytes = await work  # type: ignore[misc]
    return Scanned(size_bytes, time.perf_counter() - wall, time.process_time() - cpu)


async def measure(url: str, arguments: argparse.Namespace) -> dict[str, object]:
    store = open_store(url)
    names = ObjectNames("bench", "cold-scan")
    segment = await put_segment(store, names, arguments.mib * MIB, arguments.batch_kib << 10)
    parts = segment.remote.parts
    await raw_pass(store, parts)  # warm the page cache
    raw: list[Scanned] = []
    scan: list[Scanned] = []
    for _ in range(arguments.rounds):
        raw.append(await measured(raw_pass(store, parts)))
        scan.append(await measured(scan_pass(store, names, segment)))
    await store.delete([part.object_key for part in parts])
    await store.close()
    raw_mib = statistics.median(one.mib_per_s for one in raw)
    scan_mib = statistics.median(one.mib_per_s for one in scan)
    return {
        "store": store.url.split(":")[0],
        "batch_kib": arguments.batch_kib,
        "raw_mib_per_s": round(raw_mib),
        "scan_mib_per_s": round(scan_mib),
        "ratio": round(scan_mib / raw_mib, 3),
        "raw_cpu_s_per_gib": round(statistics.median(one.cpu_s / one.size_bytes for one in raw) * 1024 * MIB, 2),
        "scan_cpu_s_per_gib": round(statistics.median(one.cpu_s / one.size_bytes for one in scan) * 1024 * MIB, 2),
        "rounds": arguments.rounds,
    }


@contextmanager
def versitygw(folder: Path) -> Iterator[str]:
    """A real S3 server over a folder; its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "bench").mkdir(parents=True)
    command = [
        str(REPOSITORY / ".cache/bin/versitygw"), "--access", "bench", "--secret", "benchbench", "--keep-alive",
        "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        endpoint = f"http://127.0.0.1:{port}"
        yield f"s3://bench/scan?endpoint={endpoint}&access_key_id=bench&secret_access_key=benchbench&region=us-east-1"
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", action="append", default=[], help="URL of a store; may be given more than once")
    parser.add_argument("--versitygw", action="store_true", help="also a versitygw of this run's own")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-kib", type=int, default=16)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cold-scan-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        urls = arguments.store or [str(folder / "directory")]
        if arguments.versitygw:
            urls.append(stack.enter_context(versitygw(folder / "s3")))
        for url in urls:
            row = uvloop.run(measure(url, arguments))
            print(json.dumps(row))
            if row["ratio"] < 0.8:  # type: ignore[operator]
                print(f"below 80 % of raw GETs: {row['store']}", file=sys.stderr)


if __name__ == "__main__":
    main()
