"""What the storage nodes say of themselves: segments and where they are, proofs, and their metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from stratalog_e2e.kubernetes_api import Object
from stratalog_e2e.place import Place

COLD = "stratalog_cold_read_fetched_bytes_total"
SegmentKey = tuple[int, int, int]
"""Shard, base offset, epoch."""
_METRICS = """
import os, urllib.request
token = open(os.environ["STRATALOG_TOKEN_FILE"]).readline().strip()
asked = urllib.request.Request("http://127.0.0.1:9644/metrics", headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(asked, timeout=20).read().decode())
"""


def image_bytes(place: Place) -> int:
    """Of the product's image, as a machine that has it says."""
    for machine in place.kube.list("nodes"):
        for image in machine["status"].get("images", ()):
            if any(name.endswith(place.images.product) for name in image.get("names") or ()):
                return int(image["sizeBytes"])
    raise AssertionError(f"no machine has {place.images.product}")


def start_seconds(place: Place) -> dict[str, int]:
    """From the start of its container until a pod was ready, the longest of each part."""
    return {part: max(map(_start_seconds, place.pods(part).values())) for part in ("meta", "node")}


def _start_seconds(pod: Object) -> int:
    (container,) = pod["status"]["containerStatuses"]
    (ready,) = (one for one in pod["status"]["conditions"] if one["type"] == "Ready")
    began = datetime.fromisoformat(container["state"]["running"]["startedAt"])
    return round((datetime.fromisoformat(ready["lastTransitionTime"]) - began).total_seconds())


_ASK = """
import os, sys, urllib.error, urllib.request
token = {"none": "", "wrong": "of-nobody-in-this-cluster"}.get(sys.argv[2])
if token is None:
    token = open(os.environ["STRATALOG_TOKEN_FILE"]).readline().strip()
asked = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {token}"} if token else {})
try:
    print(urllib.request.urlopen(asked, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def answer(place: Place, url: str, token: str) -> int:
    """HTTP status that a pod of the cluster gets there. `token` is `right`, `wrong` or `none`."""
    pod = sorted(place.pods())[0]
    return int(place.kube.exec(pod, place.name, "python", "-c", _ASK, url, token))


def segments(place: Place, topic: str) -> list[Object]:
    """As a node that has it sees each."""
    told = json.loads(place.stratalog("segments", topic, "--output", "json", "--admin", place.admin()))
    return list(told["segments"] if isinstance(told, dict) else told)


def topic_names(place: Place) -> set[str]:
    told = json.loads(place.stratalog("topics", "list", "--output", "json"))
    return {one["name"] for one in (told["topics"] if isinstance(told, dict) else told)}


def replicas(place: Place, topic: str) -> set[int]:
    """Nodes to which the newest segments belong."""
    newest: dict[int, Object] = {}
    for one in segments(place, topic):
        if one["state"] == "active":
            newest[one["shard"]] = one
    return {node for one in newest.values() for node in one["replicas"]}


def verify(place: Place, topic: str) -> None:
    """Every batch and digest, in both tiers, against the seal records: the command ends with an error otherwise."""
    place.stratalog("verify", topic, "--admin", place.admin())


def holders(place: Place, topic: str) -> dict[SegmentKey, set[int]]:
    """Which nodes have a copy of each segment, or are to make one."""
    return {
        (one["shard"], one["base_offset"], one["epoch"]): {*one["replicas"], *one["local_nodes"]}
        for one in segments(place, topic)
    }


def moved(before: Mapping[SegmentKey, set[int]], after: Mapping[SegmentKey, set[int]]) -> dict[SegmentKey, set[int]]:
    """Segments that were there before, and that nodes have now which had them not.

    Bytes from node to node say less: a replica that was slow for a moment takes what it missed of its own segment, and
    one of a new segment its first batches. No data move by that.
    """
    return {one: gained for one, nodes in after.items() if one in before and (gained := nodes - before[one])}


def members(place: Place) -> set[int]:
    """Nodes of the cluster that have not left, as the meta service lists them."""
    told = json.loads(place.stratalog("nodes", "list", "--output", "json", "--meta", place.meta()))
    rows = told["nodes"] if isinstance(told, dict) else told
    return {int(one["node_id"]) for one in rows if not one.get("retirement")}


def cold_reads(place: Place) -> float:
    return _total(place, COLD)


def _total(place: Place, metric: str) -> float:
    found = [value for text in metrics(place).values() for name, value in _lines(text) if name == metric]
    assert found, f"no node has a metric {metric}"
    return sum(found)


def metrics(place: Place) -> dict[str, str]:
    """Of each storage node that runs, asked in its pod, in plain text: the page wants the cluster's token, which these
    pods mount. With `tls.internal` they would have a certificate in its place."""
    return {name: place.kube.exec(name, place.name, "python", "-c", _METRICS) for name in place.pods()}


def _lines(text: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found.append((name.split("{", 1)[0], float(value)))
    return found
