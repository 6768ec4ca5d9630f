"""What the operator costs: memory with many topics, writes while nothing changes, how soon it does what is asked for.

    make bench-operator        writes bench/results/operator.md and .json

Four processes of their own: a real API server over a real etcd; a real meta service with pretended machines and nodes
(`tests/support/operator_scenery.py`); the real command `stratalog operator start`, in which nothing is changed but that
names of pods are this machine; and this one, which changes objects and notes from a watch when they say what.

Latency is the time from the begin of a request that changes a spec to the moment at which a watch shows the object with
that generation in `status.observedGeneration` and in `Ready` and `Reconciled`, both True.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from stratalog_operator.kube.client import path_of
from stratalog_operator.resources.definitions import definition
from stratalog_operator.resources.kinds import CLUSTER, KINDS, POOL, TOPIC, Kind
from support.api_server import MERGE, OPERATOR_TOKEN, TOKEN, ApiServer, api_server
from support.cluster_ports import free_port
from support.kind_samples import sample
from support.operator_scenery import operator_scenery

NAMESPACE = "bench"
TOPICS = 200
IDLE_SECONDS = 120
PATIENCE_S = 600.0
MOST_RUNS = 6
RESULTS = Path(__file__).with_name("results")
MIB = 1 << 20
_WRITES = re.compile(r'^stratalog_operator_api_writes_total\{[^}]*resource="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)
_BUCKET = re.compile(r'^stratalog_operator_reconcile_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


@dataclass
class Seen:
    """What a watch showed of an object last, and since when that is so."""

    body: dict[str, Any]
    at: float


@dataclass
class Watched:
    """All objects of a kind, as one stream of the API server brings them."""

    api: ApiServer
    kind: str
    objects: dict[str, Seen] = field(default_factory=dict)
    steps: list[tuple[float, str, str]] = field(default_factory=list)
    """When, name, and the step of its retirement."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self) -> Watched:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def _run(self) -> None:
        """Until the server ends. One that has just begun to serve the kind may end a watch at once."""
        with suppress(OSError, HTTPException):
            while True:
                self._watch()
                time.sleep(0.1)

    def _watch(self) -> None:
        connection = self.api.connect()
        connection.timeout = 3600
        connection.request(
            "GET", f"{path_of(self.kind, NAMESPACE)}?watch=true", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        for line in connection.getresponse():
            event = json.loads(line)
            if event["type"] == "ERROR":
                break
            self._note_event(event)
        connection.close()

    def _note_event(self, event: dict[str, Any]) -> None:
        body, now = event["object"], time.monotonic()
        name = body["metadata"]["name"]
        with self.changed:
            if event["type"] == "DELETED":
                self.objects.pop(name, None)
                self.steps.append((now, name, "gone"))
            else:
                step = (body.get("status", {}).get("retirement") or {}).get("step", "")
                before = self.objects.get(name)
                last = "" if before is None else (before.body.get("status", {}).get("retirement") or {}).get("step", "")
                if step != last:
                    self.steps.append((now, name, step))
                self.objects[name] = Seen(body, now)
            self.changed.notify_all()

    def until(self, is_so: Callable[[dict[str, Seen]], bool]) -> float:
        """When it was seen to be so."""
        with self.changed:
            assert self.changed.wait_for(lambda: is_so(self.objects), PATIENCE_S), f"{self.kind}: it never came"
            return time.monotonic()


def is_done(body: dict[str, Any], generation: int) -> bool:
    """Whether the spec is applied and the object is ready."""
    status = body.get("status", {})
    good = {
        one["type"]
        for one in status.get("conditions", [])
        if one["status"] == "True" and one["observedGeneration"] >= generation
    }
    return status.get("observedGeneration", 0) >= generation and {"Ready", "Reconciled"} <= good


class Bench:
    def __init__(self, api: ApiServer, folder: Path, meta_port: int) -> None:
        self.api, self._folder = api, folder
        self.topics, self.nodes = Watched(api, "TopicStorage").start(), Watched(api, "StorageNode").start()
        self.clusters = Watched(api, "StorageCluster").start()
        self.rows: list[tuple[str, str]] = []
        self.raw: dict[str, Any] = {}
        self._address = f"127.0.0.1:{free_port()}"
        self._operator = self._start(meta_port)

    def _start(self, meta_port: int) -> subprocess.Popen[bytes]:
        certificate = str(self.api.certificates.ca)
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": self.api.url, "certificate-authority": certificate}}],
            "users": [{"name": "bench", "user": {"token": OPERATOR_TOKEN}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }  # fmt: skip
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(config))
        names = Path(__file__).resolve().parents[1] / "tests" / "support" / "names_on_loopback"
        command = [str(Path(sys.executable).with_name("stratalog")), "operator", "start", "--namespace", NAMESPACE]
        command += ["--lease-namespace", NAMESPACE, "--listen", self._address]
        environment = {name: word for name, word in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"KUBECONFIG": str(kubeconfig), "PYTHONPATH": str(names)}
        environment |= {"STRATALOG_TEST_META_PORT": str(meta_port)}
        with (self._folder / "operator.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def stop(self) -> None:
        self._operator.send_signal(signal.SIGTERM)
        code = self._operator.wait(60)
        assert code == 0, (self._folder / "operator.log").read_text()[-3_000:]

    # What is asked of it ----------------------------------------------------------------------------------------------
    def make(self, kind: Kind, changes: dict[str, object] | None = None) -> None:
        made = self.api.ask("POST", path_of(kind.name, NAMESPACE), sample(kind, changes))
        assert made.is_ok, made.message

    def change(self, kind: str, name: str, spec: dict[str, object]) -> int:
        """Returns the generation that this made."""
        answer = self.api.ask("PATCH", path_of(kind, NAMESPACE, name), {"spec": spec}, kind=MERGE)
        assert answer.is_ok, answer.message
        return int(answer.body["metadata"]["generation"])

    def until_ready(self, nodes: int) -> float:
        def is_so(found: dict[str, Seen]) -> bool:
            status = found["main"].body.get("status", {}) if "main" in found else {}
            return status.get("nodes") == {"desired": nodes, "ready": nodes, "retiring": 0} and any(
                one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"]
            )

        return self.clusters.until(is_so)

    # What it costs ----------------------------------------------------------------------------------------------------
    def page(self) -> str:
        with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=30) as answer:
            return bytes(answer.read()).decode()

    def writes(self) -> int:
        return int(sum(float(number) for resource, number in _WRITES.findall(self.page()) if resource != "leases"))

    def memory_kib(self, what: str = "VmHWM") -> int:
        """VmHWM: the most that was ever resident, as the kernel noted it."""
        lines = Path(f"/proc/{self._operator.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{what}:")))

    def processor_s(self) -> float:
        fields = Path(f"/proc/{self._operator.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def say(self, what: str, value: str) -> None:
        self.rows.append((what, value))
        print(f"{what}: {value}", flush=True)

    def say_spread(self, what: str, key: str, seconds: list[float]) -> None:
        self.raw[key] = [round(one, 4) for one in seconds]
        spread = f"p50 {statistics.median(seconds):.2f} s, p99 {p99(seconds):.2f} s, longest {max(seconds):.2f} s"
        self.say(what, spread)

    # The scenes -------------------------------------------------------------------------------------------------------
    def comes_up(self) -> None:
        began = time.monotonic()
        self.make(CLUSTER)
        self.make(POOL, {"spec.zones": []})
        self.say("three nodes, from nothing to `Ready`", f"{self.until_ready(3) - began:.1f} s")

    def burst_of_topics(self) -> None:
        begins = {}
        for number in range(TOPICS):
            begins[f"topic-{number}"] = time.monotonic()
            spec = {"clusterRef": "main", "topicName": f"topic-{number}"}
            self.make(TOPIC, {"metadata.name": f"topic-{number}", "spec": spec})
        made = time.monotonic() - begins["topic-0"]
        done = self._all_done(begins, dict.fromkeys(begins, 1))
        self.say_spread(f"{TOPICS} TopicStorages made within {made:.1f} s: each until done", "burst_made", done)

    def single_edits(self) -> None:
        """One after the other: each begins when the one before it is done."""
        took, processor = [], self.processor_s()
        for number in range(TOPICS):
            name, began = f"topic-{number}", time.monotonic()
            generation = self.change("TopicStorage", name, {"config": {"segment.ms": str(3_600_000 + number)}})
            self.topics.until(lambda found, name=name, generation=generation: is_done(found[name].body, generation))
            took.append(time.monotonic() - began)
        self.say_spread(f"{TOPICS} single edits, one after the other: each until done", "single_edits", took)
        each_ms = 1000 * (self.processor_s() - processor) / TOPICS
        self.raw["processor_ms_per_edit"] = round(each_ms, 1)
        self.say("processor time of the operator for each of them", f"{each_ms:.0f} ms")

    def burst_of_edits(self) -> None:
        """Edits all topics at once, and scales a pool meanwhile, which must not wait for the topics."""
        begins, generations = {}, {}
        for number in range(TOPICS):
            begins[f"topic-{number}"] = time.monotonic()
            spec: dict[str, object] = {"deletionPolicy": "Delete", "config": {"segment.ms": str(7_200_000 + number)}}
            generations[f"topic-{number}"] = self.change("TopicStorage", f"topic-{number}", spec)
        made = time.monotonic() - begins["topic-0"]
        scaled = time.monotonic()
        self.change("StorageNodePool", "hot", {"replicas": 4})
        noticed = self.nodes.until(lambda found: len(found) == 4) - scaled
        done = self._all_done(begins, generations)
        self.say_spread(
            f"{TOPICS} edits within {made:.1f} s, each with a finalizer to set: each until done", "burst_edits", done
        )
        self.raw["scale_in_burst"] = round(noticed, 4)
        self.say("a scale 3 -> 4 right behind them, until its StorageNode is there", f"{noticed:.2f} s")
        self.until_ready(4)
        self._scale(3)
        self.until_ready(3)

    def _all_done(self, begins: dict[str, float], generations: dict[str, int]) -> list[float]:
        ends: dict[str, float] = {}

        def is_so(found: dict[str, Seen]) -> bool:
            for name, generation in generations.items():
                if name not in ends and name in found and is_done(found[name].body, generation):
                    ends[name] = found[name].at
            return len(ends) == len(generations)

        self.topics.until(is_so)
        return [ends[name] - began for name, began in begins.items()]

    def idle(self) -> None:
        time.sleep(20)
        writes, processor = self.writes(), self.processor_s()
        time.sleep(IDLE_SECONDS)
        used = 100 * (self.processor_s() - processor) / IDLE_SECONDS
        assert writes > TOPICS, "the page of metrics says nothing of the writes that made all this"
        self.raw["writes"] = {"before": writes, "idle": self.writes() - writes}
        self.say(
            f"writes to Kubernetes in {IDLE_SECONDS} s in which nothing changed, the Lease excepted",
            str(self.writes() - writes),
        )
        self.say("processor time while nothing changes", f"{used:.1f} % of a core")

    def _scale(self, replicas: int) -> float:
        began = time.monotonic()
        self.change("StorageNodePool", "hot", {"replicas": replicas})
        return began

    def scales_out(self) -> None:
        began = self._scale(5)
        there = self.nodes.until(lambda found: len(found) == 5) - began
        ready = self.until_ready(5) - began
        # Nothing is produced here, so no segment rolls: a new topic is what opens segments.
        spec = {"clusterRef": "main", "topicName": "wide", "shards": 30, "deletionPolicy": "Delete"}
        self.make(TOPIC, {"metadata.name": "wide", "spec": spec})

        def lead(found: dict[str, Seen]) -> bool:
            led = [one.body.get("status", {}).get("data", {}).get("leaders", 0) for one in found.values()]
            return len(led) == 5 and all(led)

        leads = self.nodes.until(lead) - began
        self.raw["scale_out"] = {"storage_nodes": there, "members_and_ready": ready, "lead": leads}
        self.say("scale-out 3 -> 5: both StorageNodes are there", f"{there:.1f} s")
        self.say("scale-out 3 -> 5: both are members, and the cluster is `Ready`", f"{ready:.1f} s")
        self.say("scale-out 3 -> 5: both lead shards, of a topic made then, and say so", f"{leads:.1f} s")
        assert self.api.ask("DELETE", path_of("TopicStorage", NAMESPACE, "wide")).is_ok
        self.topics.until(lambda found: "wide" not in found)

    def scales_in(self) -> None:
        self.nodes.steps.clear()
        began = self._scale(3)
        whole = self.until_ready(3) - began
        steps = [(round(at - began, 3), name, step) for at, name, step in self.nodes.steps]
        self.raw["scale_in"] = {"steps": steps, "whole": whole}
        for name in sorted({name for _, name, _ in steps}):
            told = ", ".join(f"{step} {at:.1f}" for at, one, step in steps if one == name)
            self.say(f"scale-in 5 -> 3, `{name}`: seconds until each step was told", told)
        self.say("scale-in 5 -> 3 of nodes without data: both have left, and the cluster is `Ready`", f"{whole:.1f} s")

    def passes(self) -> None:
        bounds = [(le, float(number)) for le, number in _BUCKET.findall(self.page())]
        count = bounds[-1][1]
        self.say("passes in this run", f"{count:.0f}")
        for share, name in ((0.5, "median"), (0.99, "p99")):
            bound = next(le for le, below in bounds if below >= share * count)
            self.say(f"time of a pass, {name}", f"at most {bound} s")


async def _served(api: ApiServer) -> None:
    for kind in KINDS:
        api.define(definition(kind))
    api.namespace(NAMESPACE)
    api.let_operate(NAMESPACE)


def measure() -> Bench:
    with tempfile.TemporaryDirectory(prefix="operator-bench-") as name:
        folder = Path(name)
        with api_server(folder / "server") as api:
            asyncio.run(_served(api))
            with operator_scenery(api, NAMESPACE, folder / "scenery.log") as meta_port:
                bench = Bench(api, folder, meta_port)
                load = os.getloadavg()[0]
                bench.comes_up()
                bench.burst_of_topics()
                bench.single_edits()
                bench.burst_of_edits()
                bench.idle()
                bench.scales_out()
                bench.scales_in()
                peak = bench.memory_kib() * 1024 / MIB
                bench.say(f"memory with {TOPICS} TopicStorages, the most of the whole run (VmHWM)", f"{peak:.0f} MiB")
                bench.raw["peak_rss_kib"] = bench.memory_kib()
                bench.passes()
                bench.raw["load_average"] = [round(load, 1), round(os.getloadavg()[0], 1)]
                bench.stop()
                return bench


def write(bench: Bench) -> None:
    before, after = bench.raw["load_average"]
    told = f"""# The operator

Made by `bench/operator_bench.py` on {os.cpu_count()} cores that were shared with other work: the load average was
{before} when it began and {after} at its end, so the times are those of a busy machine. The operator is the real
command, `stratalog operator start`, in a process of its own. API server, etcd and meta service are real and beside it;
machines and storage nodes are pretended, in a process of their own: no image is pulled, no disk is written, and a node
that leaves has no data.

Done: `status.observedGeneration` is the generation of the change, and `Ready` and `Reconciled` are True for it. Each
duration is from the begin of the request to the event of a watch; all of them are in `operator.json`.
"""
    lines = [
        told,
        "| what | measured |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in bench.rows),
    ]
    kept = RESULTS / "operator.json"
    runs = [*(json.loads(kept.read_text()).get("runs", []) if kept.exists() else []), in_short(bench.raw)]
    lines += [
        "",
        "The last runs beside each other, for most of what differs is the load of a shared machine (averages of a",
        "minute, at begin and end; seconds):",
        "",
        "| load | single edit p50 | p99 | longest | scale behind a burst | most memory |",
        "|---|---|---|---|---|---|",
        *(row_of(one) for one in runs[-MOST_RUNS:]),
    ]
    (RESULTS / "operator.md").write_text("\n".join(lines) + "\n")
    told = {"rows": dict(bench.rows), **bench.raw, "runs": runs[-MOST_RUNS:]}
    kept.write_text(json.dumps(told, indent=1) + "\n")


def row_of(one: dict[str, Any]) -> str:
    begin, end = one["load"]
    cells = [f"{begin} to {end}", one["p50"], one["p99"], one["longest"], one["scale"], f"{one['mib']} MiB"]
    return f"| {' | '.join(map(str, cells))} |"


def in_short(raw: dict[str, Any]) -> dict[str, Any]:
    edits = raw["single_edits"]
    return {
        "load": raw["load_average"],
        "p50": round(statistics.median(edits), 2),
        "p99": round(p99(edits), 2),
        "longest": round(max(edits), 2),
        "scale": round(raw["scale_in_burst"], 2),
        "mib": round(raw["peak_rss_kib"] / 1024),
    }


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]


if __name__ == "__main__":
    write(measure())
