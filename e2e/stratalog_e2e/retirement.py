"""Which steps a leaving node went through: watched by the `kubernetes` client, and as the meta service logged them."""

from __future__ import annotations

import json
import threading
from datetime import datetime
from types import TracebackType
from typing import Final

import kubernetes.client
import kubernetes.config
import kubernetes.watch

from stratalog.machines.copies.leaving import HANDOVER_MS
from stratalog.model.retirement import RetireStep
from stratalog_e2e.place import Place
from stratalog_operator.resources.names import GROUP, VERSION

_TO_RELEASE: Final = ("Wished", "Preflight", "Cordon", "Seal", "Offload", "Verify", "Snapshot", "Release")
ORDER: Final = {
    "Offload": (*_TO_RELEASE, "Mount", "PodStop", "Volume", "Done"),
    "RemountVolume": (*_TO_RELEASE, "PodStop", "Remount", "Mount", "Volume", "Done"),
}
"""Each may be too short to be seen."""


class Steps:
    """Requires: left as a context, or its thread keeps running."""

    def __init__(self, place: Place) -> None:
        self.seen: dict[int, list[str]] = {}
        self._namespace = place.name
        client = kubernetes.config.new_client_from_config(str(place.kube.kubeconfig))
        self._objects = kubernetes.client.CustomObjectsApi(client)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"steps in {place.name}")

    def __enter__(self) -> Steps:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(40)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._watch()
            except Exception:  # the server is away for a moment: look again
                self._ending.wait(1)

    def _watch(self) -> None:
        watch = kubernetes.watch.Watch()
        for event in watch.stream(
            self._objects.list_namespaced_custom_object,
            GROUP,
            VERSION,
            self._namespace,
            "storagenodes",
            timeout_seconds=5,
        ):
            node = event["object"]
            step = (node.get("status", {}).get("retirement") or {}).get("step")
            if step and event["type"] != "DELETED":
                steps = self.seen.setdefault(int(node["spec"]["nodeId"]), [])
                if step not in steps:
                    steps.append(step)
            if self._ending.is_set():
                watch.stop()


def released_together(place: Place) -> list[tuple[int, int]]:
    """Pairs of nodes whose second was released while no holder served the data set of the first yet, and the mount was
    not stuck either. Read from the logs of the meta service's instances."""
    moments: list[tuple[datetime, int, bool]] = []
    for pod in place.pods("meta"):
        for line in place.kube.run("logs", pod, "-n", place.name).splitlines():
            if not line.startswith("{"):
                continue
            seen = json.loads(line)
            is_release = seen["event"] == "retired node is released"
            if is_release or (seen["event"] == "retirement continues" and seen["step"] == RetireStep.DONE):
                moments.append((datetime.fromisoformat(seen["time"]), seen["node_id"], is_release))
    assert any(is_release for _, _, is_release in moments), "the logs tell of no release"
    waiting: dict[int, datetime] = {}
    found = []
    for at, node, is_release in sorted(moments):
        if is_release:
            found += [
                (other, node) for other, since in waiting.items() if (at - since).total_seconds() * 1_000 < HANDOVER_MS
            ]
            waiting[node] = at
        else:
            waiting.pop(node, None)
    return found
