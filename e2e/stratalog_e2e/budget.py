"""How much the operator writes to Kubernetes while a test runs: counted by itself, and by the API server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

from stratalog_e2e.install import Operator
from stratalog_e2e.kubernetes_api import Kubernetes, Refused
from stratalog_operator.resources.names import GROUP

AT_ONCE: Final = 300
"""Writes for creating, changing and deleting a cluster, whatever the test is about."""
PER_MINUTE: Final = 40
"""A hot loop writes more: one status in each pass is 12 writes a minute, and a cluster has five objects or more."""
_COUNTED: Final = re.compile(r"^stratalog_operator_api_writes_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)
_SERVED: Final = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE)
_WRITING: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


class Writes:
    """Since it was made, by all operators that run at the end: what one counted that was killed went with it."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._began = time.monotonic()
        self._before = dict(_by_process(operator))
        self.more = 0
        """What the test lets it write beyond that, for what it has it do several times."""

    def count(self) -> int:
        return int(sum(count - self._before.get(process, 0) for process, count in _by_process(self._operator)))

    def minutes(self) -> float:
        return (time.monotonic() - self._began) / 60

    def problem(self) -> str:
        """Empty while it keeps to its budget."""
        count, minutes = self.count(), self.minutes()
        budget = AT_ONCE + self.more + PER_MINUTE * minutes
        return "" if count <= budget else f"the operator wrote {count} times in {minutes:.1f} min, {budget:.0f} at most"


def _by_process(operator: Operator) -> Iterator[tuple[str, float]]:
    """Writes of each process, without those to its Lease."""
    for name, pod in operator.pods().items():
        restarts = sum(one["restartCount"] for one in pod["status"].get("containerStatuses", ()))
        try:
            page = operator.metrics(name)
        except Refused:  # it is coming up, and has written nothing
            continue
        counted = (one for one in _COUNTED.finditer(page) if 'resource="leases"' not in one["labels"])
        yield f"{pod['metadata']['uid']}/{restarts}", sum(float(one["count"]) for one in counted)


def served_writes(kube: Kubernetes) -> int:
    """Writes to objects of Stratalog's kinds, by all clients, as counted by the API server since its start."""
    found = 0
    for one in _SERVED.finditer(kube.run("get", "--raw", "/metrics", timeout=60)):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', one["labels"]))
        if labels.get("group") == GROUP and labels.get("verb") in _WRITING:
            found += int(float(one["count"]))
    return found
