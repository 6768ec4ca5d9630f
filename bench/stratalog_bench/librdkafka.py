"""librdkafka as a client, through confluent-kafka: one process and one result per run, like the load generator's.

    python -m stratalog_bench.librdkafka BOOTSTRAP TOPIC RECORDS BATCH LINGER_MS

Server CPU is over the whole run, its start included.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import Any

from stratalog_bench.clusters import Cluster
from stratalog_bench.context import Skipped
from stratalog_bench.load_tool import LoadFailed
from stratalog_bench.processes import cpu_seconds

_SKIPPED = 1 / 6
_LIST = 500


def need() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise Skipped("no confluent-kafka here")


def produce(cluster: Cluster, topic: str, *, records: int, batch: int, linger: str) -> dict[str, Any]:
    """Acks all, idempotent, 1 KiB records. Raises: LoadFailed."""
    before = _spent(cluster)
    command = [
        sys.executable,
        "-m",
        __name__,
        cluster.address,
        topic,
        str(records),
        str(batch),
        linger.removesuffix("ms"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if ended.returncode:
        raise LoadFailed(ended.stderr[-400:])
    found: dict[str, Any] = json.loads(ended.stdout)
    found["server_cpu_us"] = (_spent(cluster) - before) / records * 1e6
    return found


def _spent(cluster: Cluster) -> float:
    return sum(cpu_seconds(node.pid) for node in cluster.nodes.values())


def main() -> None:
    from confluent_kafka import Producer

    bootstrap, topic, records, batch, linger = sys.argv[1:]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "batch.size": int(batch),
            "linger.ms": int(linger),
            "queue.buffering.max.messages": 100_000,
        }
    )
    failed: list[str] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    total, skipped = int(records), int(int(records) * _SKIPPED)
    values = [os.urandom(1024) for _ in range(64)]
    began, spent, sent = 0.0, 0.0, 0
    while sent < total:
        if not began and sent >= skipped:
            began, spent = time.monotonic(), time.process_time()
            skipped = sent
        try:
            producer.produce(topic, values[sent % 64], on_delivery=on_delivery)
        except BufferError:
            producer.poll(0.01)
            continue
        sent += 1
        if sent % _LIST == 0:
            producer.poll(0)
    left = producer.flush(120)
    seconds = time.monotonic() - began
    if left or failed:
        sys.exit(f"{left} records not sent, {len(failed)} failed: {failed[:1]}")
    print(
        json.dumps(
            {
                "records": total,
                "per_s": (total - skipped) / seconds,
                "client_cpu_us": (time.process_time() - spent) / (total - skipped) * 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
