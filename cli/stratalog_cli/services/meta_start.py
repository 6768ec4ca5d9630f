"""An instance of the meta service as a process: its HTTP server, metrics, health, and store.

Over a directory it is the only instance, and its start fails if the store cannot be opened. Over etcd it serves as soon
as it listens: it leads, or names the instance that leads.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.event_loop.task_set import TaskSet
from stratalog.model.errors import StratalogError
from stratalog.model.members import Part
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http import TelemetryServer, split_address
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.logs import configure_logs, logger
from stratalog.telemetry.metrics import MetricRegistry
from stratalog.telemetry.printable import printable
from stratalog.telemetry.process_stats import add_process_metrics
from stratalog.telemetry.token_file import token_file
from stratalog.telemetry.watchdog import LoopWatchdog
from stratalog_cli.services.announced_address import announced_address
from stratalog_cli.services.audit import open_audit
from stratalog_cli.services.backup_place import backup_place
from stratalog_cli.services.port_access import port_access
from stratalog_cli.services.process_tls import PLAIN, open_tls
from stratalog_cli.services.server_process import collect_less_often, run_server, stop_signal
from stratalog_cli.terminal.say import say, say_error
from stratalog_meta import MetaService
from stratalog_meta.api.server import LIMITS, MetaServer, Serving
from stratalog_meta.clocks import wall_ms
from stratalog_meta.leader import Candidacy, MetaInstance
from stratalog_meta.stats import BackupStats, LifeStats, MetaStats, RepairStats, RetirementStats
from stratalog_meta.stores.etcd.address import EtcdAddress
from stratalog_meta.stores.meta_store import MetaStore
from stratalog_node.disk.durable_files import write_durably
from stratalog_node.open_files import OpenFiles

if TYPE_CHECKING:
    from stratalog_meta.stores.etcd.access import AccessFiles, EtcdAccess
    from stratalog_meta.stores.etcd.client import EtcdClient

META_FILE: Final = "meta.json"
"""A file beside the store. It shows that a store existed, so that a removed store is not created again."""

LEADER_PATIENCE_S: Final = 1.0
"""How long an instance that begins to lead waits for the bucket's answer."""

log = logger(__name__)


def run_meta(
    settings: ProcessSettings,
    listen: str,
    place: Path | EtcdAddress,
    access: EtcdAccess | None = None,
    bucket: str | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. Exits 3 when it cannot start, with the reason."""
    configure_logs(settings.log_level)
    run_server(_run(settings, listen, place, access, bucket))


async def _run(
    settings: ProcessSettings, listen: str, place: Path | EtcdAddress, access: EtcdAccess | None, bucket: str | None
) -> int:
    stopping = stop_signal()
    async with AsyncExitStack() as running:
        try:
            process = MetaProcess(settings, running, bucket)
            url = await process.start(listen, place, access)
            collect_less_often()
        except StratalogError as error:
            say_error(f"cannot start: {error}")
            return 3
        admin = process.admin or "off"
        say(f"stratalog ready: meta {url}, admin {admin}, store {printable(str(place))}")
        await stopping.wait()
        log.info("stopping")
    log.info("stopped")
    return 0


class MetaProcess:
    """What runs in the process; `running` closes it in the opposite order of its start."""

    def __init__(self, settings: ProcessSettings, running: AsyncExitStack, bucket: str | None = None) -> None:
        """`bucket` is the URL of the nodes' object store, where snapshots of the metadata go."""
        self._settings = settings
        self._running = running
        self._backups = backup_place(bucket, settings, running)
        self._backup_stats = BackupStats()
        self.metrics = MetricRegistry()
        self._stats = MetaStats()
        self._life_stats = LifeStats()
        self._repair_stats = RepairStats()
        self._retirement_stats = RetirementStats()
        self._limits = OpenFiles.of_process()
        self._tls = PLAIN
        self._audit = open_audit(settings, "meta", running)
        self.admin = ""

    async def start(self, listen: str, place: Path | EtcdAddress, access: EtcdAccess | None = None) -> str:
        """Returns the service's URL. Raises Unavailable, Corrupt, InvalidRequest."""
        self._tls = await open_tls(self._settings, Part.META, None, self._running)
        watchdog = LoopWatchdog()
        watchdog.start()
        self._running.callback(watchdog.stop)
        self.metrics.add("stratalog_loop", watchdog.stats)
        self.metrics.add("stratalog_meta", self._stats)
        self.metrics.add("stratalog_meta_lives", self._life_stats)
        self.metrics.add("stratalog_meta_repairs", self._repair_stats)
        if self._backups is not None:
            self.metrics.add("stratalog_meta_snapshot", self._backup_stats)
        self.metrics.add("stratalog_meta_retirements", self._retirement_stats)
        if self._tls.identity is not None:
            self.metrics.add("stratalog_tls", self._tls.identity.stats, {"of": "own"})  # beside those of etcd
        add_process_metrics(self.metrics)
        if isinstance(place, Path):
            url = await self._serve_directory(listen, place)
        else:
            url = await self._serve_etcd(listen, place, access)
        return url

    async def _serve_directory(self, listen: str, data: Path) -> str:
        from stratalog_meta.stores.rocksdb import RocksStore

        of_node, of_meta = data / "node" / "node.json", data / META_FILE
        known_by = next((file for file in (of_node, of_meta) if file.exists()), None)
        service = self._service(RocksStore(data / "meta", known_by=known_by))
        await service.start()
        self._running.push_async_callback(service.close)
        if not of_meta.exists():
            write_durably(of_meta, [json.dumps({"cluster_id": service.cluster_id}).encode() + b"\n"])
        return await self._listen(listen, service)

    async def _serve_etcd(self, listen: str, place: EtcdAddress, access: EtcdAccess | None) -> str:
        if (
            self._backups is not None
        ):  # an instance that takes over the lead must not wait long for a bucket that does not answer
            self._backups = replace(self._backups, start_patience_s=LEADER_PATIENCE_S)
        from stratalog_meta.stores.etcd.client import EtcdClient
        from stratalog_meta.stores.etcd.leadership import EtcdLeadership
        from stratalog_meta.stores.etcd.store import EtcdStore

        client = EtcdClient(place.endpoints, access=access)
        self._running.push_async_callback(client.close)
        self.metrics.add("stratalog_etcd", client.stats)
        if access is not None and access.ca is not None and access.files is not None:
            await self._renew_certificates(client, access.files)

        def candidacy() -> Candidacy:
            leadership = EtcdLeadership(client, place.key_prefix, address)
            return Candidacy(leadership, EtcdStore(client, place.key_prefix, leadership, source=str(place)))

        instance = MetaInstance(candidacy, self._service, scheme=self._tls.scheme)
        self._running.push_async_callback(instance.close)
        self.metrics.add("stratalog_meta_leader", instance.stats)
        self.metrics.register(
            "stratalog_meta_leader_is_leading",
            "gauge",
            "1 while this instance leads.",
            lambda: int(instance.is_leading),
        )
        url = await self._listen(listen, instance)
        address = announced_address(self._settings, split_address(url.partition("://")[2]))
        instance.start()
        return url

    async def _renew_certificates(self, client: EtcdClient, files: AccessFiles) -> None:
        from stratalog_meta.stores.etcd.renewal import identity_of, renew

        identity = await asyncio.to_thread(identity_of, files)
        self.metrics.add("stratalog_tls", identity.stats, {"of": "etcd"})
        tasks = TaskSet()
        self._running.push_async_callback(tasks.cancel)
        tasks.start(renew(identity, client))

    def _service(self, store: MetaStore) -> MetaService:
        return MetaService(
            store,
            wall_ms,
            stats=self._stats,
            life_stats=self._life_stats,
            repair_stats=self._repair_stats,
            lease_ms=self._settings.node_lease_ms,
            replace_after_ms=self._settings.replica_replace_after_ms,
            patience_ms=self._settings.recovery_patience_ms,
            backups=self._backups,
            backup_stats=self._backup_stats,
            retirement_stats=self._retirement_stats,
            verify_interval_ms=self._settings.retire_verify_interval_ms,
            min_in_sync=self._settings.min_insync_replicas,
        )

    async def _listen(self, listen: str, serving: Serving) -> str:
        settings = self._settings
        tokens = token_file(settings.auth_token_file)
        access = port_access(settings, tokens, is_for_members=self._tls.is_for_members)
        server = MetaServer(
            serving,
            limits=self._for_nodes(LIMITS),
            allowed_hosts=settings.http_allowed_hosts,
            access=access,
            token=self._tls.token_for_nodes(None if tokens is None else tokens.first),
            tls=self._tls.port,
            to_nodes=self._tls.to(Part.NODE),
            audit=self._audit,
        )
        self.metrics.add("stratalog_audit", self._audit.stats)
        self.metrics.add("stratalog_http", server.stats, {"port": "meta"})
        if settings.metrics_listen:
            telemetry = TelemetryServer(
                self.metrics,
                readiness=lambda: {} if serving.why_no_changes is None else {"metadata": serving.why_no_changes},
                limits=self._within(HttpLimits()),
                allowed_hosts=settings.http_allowed_hosts,
                access=access,
                tls=self._tls.port,
                audit=self._audit,
            )
            self.metrics.add("stratalog_http", telemetry.stats, {"port": "admin"})
            self._running.push_async_callback(telemetry.stop)
            self.admin = await telemetry.start(settings.metrics_listen)
        url = await server.start(*split_address(listen, "--listen"))
        self._running.push_async_callback(server.close)
        return url

    def _within(self, limits: HttpLimits) -> HttpLimits:
        """A port's limits by the settings, within its share of the descriptors."""
        settings = self._settings
        return replace(
            limits,
            max_connections=min(settings.http_max_connections, self._limits.http_connections),
            max_connections_per_ip=settings.http_max_connections_per_ip,
            request_timeout_s=settings.http_request_timeout_ms / 1_000,
            max_idle_s=settings.http_max_idle_ms / 1_000,
        )

    def _for_nodes(self, limits: HttpLimits) -> HttpLimits:
        """Of the port that nodes come to, each with all that its shards ask for at a time. Here it has the descriptors
        that a node keeps for Kafka clients."""
        settings = self._settings
        return replace(
            self._within(limits),
            max_connections=min(settings.meta_max_connections, self._limits.kafka_connections),
            max_connections_per_ip=settings.meta_max_connections_per_ip,
            setting="meta.max.connections",
        )
