"""The operator as a process: waits for the Lease, then watches the clusters, and makes passes until it is asked to
stop.

    serve the admin port -> wait for the definitions -> wait for the Lease -> watch, make passes, renew
    told to stop: passes that are under way end, then the Lease is given back
    Lease lost, or the watch ended: over at once, and Kubernetes starts it again

Runs in an event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import StratalogError
from stratalog.telemetry.http import TelemetryServer
from stratalog.telemetry.logs import logger
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.telemetry.process_stats import add_process_metrics
from stratalog_operator.announce import Announcer
from stratalog_operator.finalizer_release import ALL_KINDS, let_go_all, served_kinds
from stratalog_operator.handlers import Watch
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.kube.connect import Configuration, account, connected
from stratalog_operator.lease import DEFAULT_TIMES, Lease, LeaseTimes
from stratalog_operator.metas import MetaConnections
from stratalog_operator.passes import Passes
from stratalog_operator.queue import Key
from stratalog_operator.stats import OperatorStats, export
from stratalog_operator.workers import Workers

RESYNC_S: Final = 300.0
"""Interval at which all clusters are listed again, in case a watch missed a change."""
PATIENCE_S: Final = 20.0
_DEFINITIONS_S: Final = 5.0
EVENTS_S: Final = 3.0
"""Time for writing the remaining Events after a request to stop."""
SILENT_S: Final = 60.0
"""The process is not ready once the API server has not answered for this long."""

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    identity: str
    """No other process's."""
    namespaces: tuple[str, ...] = ()
    """Watched; none: all."""
    lease_namespace: str = "default"
    lease_name: str = "stratalog-operator"
    lease_times: LeaseTimes = DEFAULT_TIMES
    admin_listen: str = ""
    """HOST:PORT of health and metrics; empty: none."""
    allowed_hosts: str = ""
    namespace: str = ""
    """Where its own pods are; empty: not known."""


class Operator:
    def __init__(
        self,
        settings: OperatorSettings,
        configuration: Configuration,
        metas: MetaConnections,
        take_signals: Callable[[], None] = lambda: None,
    ) -> None:
        """`take_signals` is called once kopf has started, which takes the signals of the process for itself."""
        self._settings = settings
        self._configuration = configuration
        self._metas = metas
        self._take_signals = take_signals
        self.stats = OperatorStats()
        self._registry = MetricRegistry()
        self._waits: dict[str, str] = {"lease": "the API server has not answered yet"}
        self.address = ""
        """Of the admin port, once it is served."""
        self.kubernetes: Kubernetes | None = None
        """While it runs, and afterwards."""
        self._workers: Workers | None = None

    def wake(self, key: Key, *, is_named_only: bool = False) -> None:
        """Makes a pass over the cluster soon. Does nothing while this replica does not hold the Lease."""
        if self._workers is not None:
            self._workers.wake(key, is_named_only=is_named_only)

    def _woken(self, key: Key, is_named_only: bool) -> None:
        """A watch reported a change."""
        self.stats.wakes += 1
        self.wake(key, is_named_only=is_named_only)

    async def run(self, stopping: asyncio.Event) -> bool:
        """Returns: True after a request to stop; False if the Lease was lost, and then the process must end at once.

        Raises: StratalogError if anything else ends it."""
        loop = asyncio.get_running_loop()
        async with connected(self._configuration) as kubernetes:
            self.kubernetes = kubernetes
            settings = self._settings
            lease = Lease(
                kubernetes,
                settings.lease_namespace,
                settings.lease_name,
                settings.identity,
                settings.lease_times,
                loop.time,
            )
            kubernetes.may_write = lease.check
            admin = await self._serve(kubernetes, lease)
            try:
                return await self._work(kubernetes, lease, stopping)
            finally:
                await admin.stop()
                await self._metas.close()

    async def _serve(self, kubernetes: Kubernetes, lease: Lease) -> TelemetryServer:
        add_process_metrics(self._registry)
        export(self._registry, self.stats, kubernetes)

        def missing() -> Mapping[str, str]:
            heard = lease.last_answer_at
            if heard is not None and asyncio.get_running_loop().time() - heard > SILENT_S:
                return {"kubernetes": f"the API server has not answered for {SILENT_S:.0f} s"}
            return {} if heard is not None else self._waits

        self._registry.refresh_with(lambda: setattr(self.stats, "is_leader", int(lease.is_held)))
        server = TelemetryServer(
            self._registry, readiness=missing, allowed_hosts=self._settings.allowed_hosts, is_for_all=True
        )
        if self._settings.admin_listen:
            self.address = await server.start(self._settings.admin_listen)
            log.info("health and metrics are served", address=self.address)
        return server

    async def _work(self, kubernetes: Kubernetes, lease: Lease, stopping: asyncio.Event) -> bool:
        stop = asyncio.create_task(stopping.wait())
        ready = asyncio.create_task(self._lead_first(kubernetes, lease))
        try:
            await asyncio.wait({stop, ready}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.is_set():
                return True
            ready.result()
            log.info("leads", lease=self._settings.lease_name, identity=self._settings.identity)
            return await self._lead(kubernetes, lease, stop)
        finally:
            ready.cancel()
            stop.cancel()
            await lease.release()

    async def _lead_first(self, kubernetes: Kubernetes, lease: Lease) -> None:
        self._waits = {"definitions": "its kinds are not defined: install crds/"}
        await self._wait_for_definitions(kubernetes, lease)
        self._waits = {"lease": "it has not been asked for yet"}
        await lease.acquire()

    async def _wait_for_definitions(self, kubernetes: Kubernetes, lease: Lease) -> None:
        """Returns once all kinds are served: kopf looks once, when it starts. While only some are, they are being made,
        or removed with their objects: what is being deleted must not wait for this process."""
        announcer = Announcer(kubernetes, self.stats, self._settings.identity)
        passes = Passes(kubernetes, self._metas, announcer, self.stats)
        while True:
            try:
                served = await served_kinds(kubernetes)
                if served == ALL_KINDS:
                    return
                words = f"not defined: {', '.join(sorted(ALL_KINDS - served))}"
                if served and await lease.attempt():
                    await let_go_all(kubernetes, passes, self._settings.namespaces, served)
            except StratalogError as error:
                words = str(error)
            log.warning("waiting for the definitions of its kinds: install crds/", error=words)
            await asyncio.sleep(_DEFINITIONS_S)

    async def _lead(self, kubernetes: Kubernetes, lease: Lease, stop: asyncio.Task[bool]) -> bool:
        announcer = Announcer(kubernetes, self.stats, self._settings.identity)
        passes = Passes(kubernetes, self._metas, announcer, self.stats, self._settings.namespace)
        workers = self._workers = Workers(passes.run_pass, self.stats)
        self._registry.refresh_with(workers.measure)
        watch = Watch(self._settings.namespaces, self._woken, lambda: account(self._configuration))
        keeping = asyncio.create_task(lease.keep())
        await watch.start()
        self._take_signals()
        tasks = [
            asyncio.create_task(workers.run()),
            asyncio.create_task(self._resync(kubernetes, workers)),
            asyncio.create_task(watch.ended()),
            asyncio.create_task(announcer.run()),
        ]
        try:
            await asyncio.wait({stop, keeping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if keeping.done():
                log.error("lease lost: ends at once", lease=self._settings.lease_name)
                return False
            for task in tasks:
                if task.done():
                    task.result()
            log.info("stopping")
            await workers.finish(PATIENCE_S)
            await announcer.finish(EVENTS_S)
            return True
        finally:
            for task in (*tasks, keeping):
                task.cancel()
            await watch.stop()
            await workers.stop()

    async def _resync(self, kubernetes: Kubernetes, workers: Workers) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            for namespace in self._settings.namespaces or ("",):
                try:
                    found = await kubernetes.ask("GET", path_of("StorageCluster", namespace))
                except StratalogError as error:
                    log.warning("clusters could not be listed", namespace=namespace, error=str(error))
                    continue
                for one in found["items"]:
                    workers.wake((one["metadata"]["namespace"], one["metadata"]["name"]))
