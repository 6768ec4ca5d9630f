"""A storage node whose machine takes no pods: its pod is deleted and cannot start again, because its volume is there.

So a node can be lost for as long as a test needs, on every Kubernetes, and comes back with its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shlex import quote

from stratalog_e2e.kubernetes_api import until
from stratalog_e2e.place import CLUSTER, POOL, Place


class Machines:
    def __init__(self, place: Place, undo: Callable[[str], None]) -> None:
        """`undo` takes the command that undoes what is done to a machine."""
        self._place = place
        self._undo = undo

    @contextmanager
    def lost(self, node_id: int) -> Iterator[None]:
        """Within, the pod of the node waits for its machine; afterwards it is ready again, if it was not retired."""
        place, pod = self._place, f"{CLUSTER}-{POOL}-{node_id}-0"
        machine = place.pods()[pod]["spec"]["nodeName"]
        self._undo(f"kubectl --kubeconfig {quote(str(place.kube.kubeconfig))} uncordon {machine} >/dev/null")
        place.kube.run("cordon", machine)
        place.kube.delete("pod", pod, place.name)
        until(lambda: place.get("pod", pod), lambda one: one is not None, 60, f"{pod} waits")
        place.until_condition("storagenode", f"{CLUSTER}-{POOL}-{node_id}", "Registered", "False", 180)
        yield
        place.kube.run("uncordon", machine)
        if place.get("pod", pod) is not None:
            place.kube.run(
                "wait", "--for=condition=Ready", f"pod/{pod}", "-n", place.name, "--timeout=180s", timeout=200
            )
            until(lambda: self._is_there(node_id), bool, 120, f"node {node_id} is there again")

    def _is_there(self, node_id: int) -> bool:
        """Also when it has been retired meanwhile."""
        place, name = self._place, f"{CLUSTER}-{POOL}-{node_id}"
        return (
            place.get("storagenode", name) is None
            or place.condition("storagenode", name, "Registered")["status"] == "True"
        )
