"""What kopf brings: events of Kubernetes, which wake the cluster that they are about, and nothing else.

Only handlers of events are used: they need neither a finalizer nor a note on the objects, and no right but to list and
to watch. What is the operator's own is found by its label, so that other people's pods never come this far.

Lives in the operator's event loop. The run of kopf itself would cancel every task of that loop at its end, ours
included: so its tasks are started and ended here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import kopf

from stratalog.model.errors import Unavailable
from stratalog.telemetry.logs import logger
from stratalog_operator.kube.connect import Account
from stratalog_operator.queue import Key
from stratalog_operator.resources.kinds import CLUSTER, KINDS
from stratalog_operator.resources.names import FIELD_MANAGER, GROUP, LABEL_CLUSTER, VERSION

LABELLED: Final = (
    ("", "v1", "pods"),
    ("", "v1", "persistentvolumeclaims"),
    ("apps", "v1", "statefulsets"),
    ("batch", "v1", "jobs"),
)
"""Of the cluster that their label names."""

_STOP_S: Final = 10.0

Wake = Callable[[Key, bool], None]
"""The cluster, and whether only an object that names it has changed."""
Login = Callable[[], Awaitable[Account]]

log = logger(__name__)


def registry(wake: Wake, login: Login) -> kopf.OperatorRegistry:
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        one = await login()
        return kopf.ConnectionInfo(
            server=one.server,
            ca_path=one.ca_path,
            insecure=one.is_insecure,
            token=one.token,
            certificate_path=one.certificate_path,
            private_key_path=one.key_path,
        )

    async def woken(body: Mapping[str, Any], **_: Any) -> None:
        key = key_of(body)
        if key is not None:
            wake(key, body.get("kind") != CLUSTER.name)

    for kind in KINDS:
        kopf.on.event(GROUP, VERSION, kind.plural, registry=found, id=f"wake-{kind.plural}")(woken)
    for group, version, plural in LABELLED:
        kopf.on.event(group, version, plural, registry=found, id=f"wake-{plural}")(woken)
    return found


def settings() -> kopf.OperatorSettings:
    found = kopf.OperatorSettings()
    # The operator's own Lease, Events and HTTP server replace those of kopf.
    found.peering.standalone = True
    found.posting.enabled = False
    # Namespaces and definitions are not watched: that would need rights in the whole of Kubernetes.
    found.scanning.disabled = True
    # A stream that fell silent is taken up again.
    found.watching.server_timeout = 600
    found.watching.client_timeout = 660
    found.watching.connect_timeout = 30
    found.networking.request_timeout = 60
    # How long a stop may take is the pod's to say.
    found.process.ultimate_exiting_timeout = None
    for group, version, plural in LABELLED:
        found.watching.label_selectors[group, version, plural] = LABEL_CLUSTER
    return found


def key_of(body: Mapping[str, Any]) -> Key | None:
    """The cluster that an object is about."""
    metadata = body.get("metadata") or {}
    namespace = metadata.get("namespace")
    if body.get("kind") == CLUSTER.name:
        name = metadata.get("name")
    elif str(body.get("apiVersion", "")).startswith(f"{GROUP}/"):
        name = (body.get("spec") or {}).get("clusterRef")
    else:
        name = (metadata.get("labels") or {}).get(LABEL_CLUSTER)
    return (str(namespace), str(name)) if namespace and name else None


class Watch:
    def __init__(self, namespaces: Collection[str], wake: Wake, login: Login) -> None:
        """No namespaces: all of them."""
        self._namespaces = namespaces
        self._registry = registry(wake, login)
        self._tasks: Collection[asyncio.Task[None]] = ()

    async def start(self) -> None:
        self._tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=settings(),
            standalone=True,
            # Its own would be made of the user's name, and the image's user has none.
            identity=FIELD_MANAGER,  # type: ignore[arg-type]  # a str under a name that kopf does not export
            clusterwide=not self._namespaces,
            namespaces=tuple(self._namespaces),
        )

    async def ended(self) -> None:
        """Waits until one of its tasks ends, which none ever should. Raises: Unavailable."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = next(iter(done))
        error = None if task.cancelled() else task.exception()
        raise Unavailable(
            f"the watch of Kubernetes ended ({task.get_name()}: {error}): the operator starts again"
        ) from error

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_S)
