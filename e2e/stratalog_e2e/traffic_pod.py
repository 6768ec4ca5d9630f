"""Clients inside the cluster: producers and a consumer with sequence numbers, a sentinel topic, and a judge at the end.

`python -m stratalog_e2e.traffic_pod` serves on port 8080, and is asked by GET through the API server. Answers are JSON:

/start?bootstrap=B&topic=T&shards=N&per_s=R   begins to produce and to read along
/acknowledged                                 how many records each shard has acknowledged
/gap                                          the longest time, in seconds, in which a shard acknowledged nothing
/judge                                        ends the clients and reads everything back; ask again until `done`
/login/start?bootstrap=B&user=U&topic=T       a user begins to write (`logged_in.py`); /login/told, and /login/end
/login/write?bootstrap=B&user=U&topic=T       the error of one attempt, and /login/read with group=G
/sentinel/write?bootstrap=B&topic=T           writes what must never change; /sentinel/read gives count and digest of it
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import confluent_kafka

from stratalog_e2e.logged_in import Producing, try_to_read, try_to_write
from support.cluster_traffic import Traffic, read_all
from support.history import Place

PORT = 8080
SENTINELS = 2000
_STEP_S = 0.1


class Work:
    """One run of clients, and what became of it."""

    def __init__(self, bootstrap: str, topic: str, shards: int, per_s: float) -> None:
        self.traffic = Traffic(bootstrap, topic, shards, senders=2, per_s=per_s / 2)
        self.gaps: dict[Place, float] = dict.fromkeys(self.traffic.places, 0.0)
        self.verdict: dict[str, Any] = {"done": False}
        self._since = dict.fromkeys(self.traffic.places, time.monotonic())
        self._judging = False
        self._lock = threading.Lock()
        threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        """Beginning with each shard's first acknowledgement: before it nothing was promised."""
        before = self.traffic.acknowledged()
        while not self._judging:
            time.sleep(_STEP_S)
            now, counts = time.monotonic(), self.traffic.acknowledged()
            for place in self.traffic.places:
                if counts[place] != before[place] or not counts[place]:
                    self._since[place] = now
                self.gaps[place] = max(self.gaps[place], now - self._since[place])
            before = counts

    def judge(self) -> dict[str, Any]:
        with self._lock:
            if not self._judging:
                self._judging = True
                threading.Thread(target=self._judge, daemon=True).start()
        return self.verdict

    def _judge(self) -> None:
        try:
            self.verdict = {"done": True, "acknowledged": self.traffic.judge(), "found": ""}
        except BaseException as error:
            self.verdict = {"done": True, "acknowledged": 0, "found": f"{type(error).__name__}: {error}"}


def write_sentinels(bootstrap: str, topic: str) -> dict[str, Any]:
    """To all shards in turn."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    shards = len(producer.list_topics(topic, timeout=30).topics[topic].partitions)
    failed: list[str] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    for number in range(SENTINELS):
        value = f"sentinel {number} ".encode() + b"." * (800 + number % 400)
        producer.produce(topic, value, partition=number % shards, on_delivery=on_delivery)
    left = producer.flush(60)
    return {"written": SENTINELS - left - len(failed), "failed": failed[:3]}


def read_sentinels(bootstrap: str, topic: str) -> dict[str, Any]:
    client = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    shards = len(client.list_topics(topic, timeout=30).topics[topic].partitions)
    logs = read_all(bootstrap, [(topic, shard) for shard in range(shards)])
    digest = hashlib.sha256()
    for (_, shard), log in sorted(logs.items()):
        for one in log.records:
            digest.update(b"%d/%d:" % (shard, one.offset) + one.value)
    return {"count": sum(len(log.records) for log in logs.values()), "digest": digest.hexdigest()}


class TrafficHandler(BaseHTTPRequestHandler):
    work: Work | None = None
    producing: Producing | None = None

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            answer, code = self._answer(url.path, dict(parse_qsl(url.query))), 200
        except Exception as error:
            answer, code = {"error": f"{type(error).__name__}: {error}"}, 500
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str, asked: dict[str, str]) -> dict[str, Any]:
        if path == "/ready":
            return {}
        if path == "/start":
            TrafficHandler.work = Work(asked["bootstrap"], asked["topic"], int(asked["shards"]), float(asked["per_s"]))
            return {}
        if path.startswith("/login/"):
            return self._of_user(path, asked)
        if path == "/sentinel/write":
            return write_sentinels(asked["bootstrap"], asked["topic"])
        if path == "/sentinel/read":
            return read_sentinels(asked["bootstrap"], asked["topic"])
        assert TrafficHandler.work is not None, "nothing was started"
        if path == "/acknowledged":
            return {str(shard): count for (_, shard), count in TrafficHandler.work.traffic.acknowledged().items()}
        if path == "/gap":
            return {str(shard): round(gap, 1) for (_, shard), gap in TrafficHandler.work.gaps.items()}
        assert path == "/judge", f"{path}: nothing is there"
        return TrafficHandler.work.judge()

    def _of_user(self, path: str, asked: dict[str, str]) -> dict[str, Any]:
        if path == "/login/start":
            TrafficHandler.producing = Producing(asked["bootstrap"], asked["user"], asked["topic"])
            return {}
        if path == "/login/write":
            return {"error": try_to_write(asked["bootstrap"], asked["user"], asked["topic"])}
        if path == "/login/read":
            return {"error": try_to_read(asked["bootstrap"], asked["user"], asked["topic"], asked["group"])}
        assert TrafficHandler.producing is not None, "no user was started"
        if path == "/login/told":
            return TrafficHandler.producing.told()
        assert path == "/login/end", f"{path}: nothing is there"
        return TrafficHandler.producing.end()

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(f"{format % args}\n")


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), TrafficHandler).serve_forever()
