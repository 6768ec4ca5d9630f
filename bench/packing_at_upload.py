"""What packing at upload (`remote.compression=zstd`) costs and spares: the node's own step between a part and its put.

    PYTHONPATH=bench:tests:tools python bench/packing_at_upload.py [--mib 1 8 16] [--rounds 3]

Parts of the flights of the demo as JSON (50 records a batch), as a client sends them plain and with lz4, and of random
bytes. CPU is that of the packing thread, the median of the rounds. "Put as it is" means that packing was tried and
given up, or not tried at all. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator

from flights import Flights

from stratalog.formats.batches.compression import Codec
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.bucket.part import decode_part_header
from stratalog_node.tier.uploads.packer import pack_if_worth
from support.packed_chunks import part_of

RECORDS_PER_BATCH = 50
MIB = 1 << 20
FIRST_MS = 1_700_000_000_000


def batches_of(values: list[bytes], codec: Codec) -> Iterator[bytes]:
    for first in range(0, len(values), RECORDS_PER_BATCH):
        some = values[first : first + RECORDS_PER_BATCH]
        records = [Record(first + at, FIRST_MS + first + at, None, value) for at, value in enumerate(some)]
        yield encode_batch(records, base_offset=first, epoch=2, compression=codec)


def part_with(values: list[bytes], codec: Codec, size_bytes: int) -> bytes:
    taken: list[bytes] = []
    held = 0
    for batch in batches_of(values, codec):
        if held >= size_bytes:
            break
        taken.append(batch)
        held += len(batch)
    return part_of(taken)


def measure(part: bytes, rounds: int) -> tuple[float, float | None]:
    """MiB of the part for a second of CPU, and how many times smaller the object is; None: it is put as it is."""
    seconds, packed = [], None
    index_position = decode_part_header(part, source="bench").index_position
    for _ in range(rounds):
        began = time.thread_time()
        packed = pack_if_worth([part], index_position, "bench")
        seconds.append(time.thread_time() - began)
    return len(part) / MIB / statistics.median(seconds), None if packed is None else len(part) / len(packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    values, rng = Flights().values, random.Random(1)
    noise = [rng.randbytes(1_000) for _ in range((max(options.mib) << 20) // 1_000 + RECORDS_PER_BATCH)]
    forms = [("flights", values, Codec.NONE), ("flights, lz4", values, Codec.LZ4), ("random", noise, Codec.NONE)]
    rows = []
    print(f"{'batches':14} {'part, MiB':>9} {'times smaller':>15} {'MiB per s of CPU':>17}")
    for name, source, codec in forms:
        for mib in options.mib:
            part = part_with(source, codec, mib << 20)
            speed, smaller = measure(part, options.rounds)
            told = "put as it is" if smaller is None else f"{smaller:.2f}"
            print(f"{name:14} {len(part) / MIB:9.1f} {told:>15} {speed:17.0f}")
            rows.append({"batches": name, "part_bytes": len(part), "smaller": smaller, "mib_per_cpu_s": speed})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
