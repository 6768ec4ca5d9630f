"""Which steps a leaving node went through, watched from the first to the last by the `kubernetes` client."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

import kubernetes.client
import kubernetes.config
import kubernetes.watch

from stratalog_e2e.place import Place
from stratalog_operator.resources.names import GROUP, VERSION

_TO_RELEASE: Final = ("Wished", "Preflight", "Cordon", "Seal", "Offload", "Verify", "Snapshot", "Release")
ORDER: Final = {
    "Offload": (*_TO_RELEASE, "Mount", "PodStop", "Volume", "Done"),
    "RemountVolume": (*_TO_RELEASE, "PodStop", "Remount", "Mount", "Volume", "Done"),
}
"""Each may be too short to be seen."""


class Steps:
    """Requires: left as a context, or its thread goes on."""

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
