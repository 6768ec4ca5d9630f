"""What runs beside the node in one process: admin and metrics HTTP, the meta service's HTTP port, the loop watchdog."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.meta_api.client import MetaForNodes
from stratalog.model.addresses import is_anywhere, written
from stratalog.model.members import Part
from stratalog.objects.stats import StoreStats
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http import TelemetryServer, split_address
from stratalog.telemetry.http_limits import HttpLimits
from stratalog.telemetry.process_stats import add_process_metrics
from stratalog.telemetry.token_file import TokenFile
from stratalog.telemetry.watchdog import LoopWatchdog
from stratalog_cli.services.port_access import port_access
from stratalog_cli.services.process_tls import PLAIN, ProcessTls
from stratalog_meta import MetaService
from stratalog_node.node import StorageNode, wall_ms

if TYPE_CHECKING:
    from aiohttp import web

    from stratalog_meta.api.server import MetaServer


class ProcessServices:
    def __init__(
        self,
        node: StorageNode,
        meta: MetaForNodes,
        settings: ProcessSettings,
        data: Path,
        tokens: TokenFile | None = None,
        tls: ProcessTls = PLAIN,
    ) -> None:
        """Without `tokens` whoever reaches the HTTP ports may ask, unless they are for members alone."""
        self._tls = tls
        self._access = port_access(settings, tokens, is_for_members=tls.is_for_members)
        self._token = None if tokens is None else tokens.first
        self._meta = meta
        self._service_inside = meta if isinstance(meta, MetaService) else None
        self._settings = settings
        self._watchdog = LoopWatchdog()
        self._meta_server: MetaServer | None = None
        node.metrics.add("stratalog_loop", self._watchdog.stats)
        if self._service_inside is not None:
            node.metrics.add("stratalog_meta", self._service_inside.stats)
            if node.store is not None:
                node.metrics.add("stratalog_meta_snapshot", self._service_inside.backup_stats)
        add_process_metrics(node.metrics)
        if isinstance(stats := getattr(node.store, "stats", None), StoreStats):
            stats.export(node.metrics)
        self._node = node
        self._data = data
        self._started_ms = wall_ms()
        self._http = TelemetryServer(
            node.metrics,
            readiness=node.readiness,
            add_routes=self._add_routes,
            imports=("stratalog_node.admin", "stratalog.ui"),
            limits=self._within(HttpLimits()),
            allowed_hosts=settings.http_allowed_hosts,
            access=self._access,
            tls=tls.port,
            audit=node.audit,
        )
        node.metrics.add("stratalog_http", self._http.stats, {"port": "admin"})

    def _within(self, limits: HttpLimits) -> HttpLimits:
        """A port's limits by the settings, within its share of the descriptors."""
        settings = self._settings
        return replace(
            limits,
            max_connections=min(settings.http_max_connections, self._node.open_files.http_connections),
            max_connections_per_ip=settings.http_max_connections_per_ip,
            request_timeout_s=settings.http_request_timeout_ms / 1_000,
            max_idle_s=settings.http_max_idle_ms / 1_000,
        )

    def _add_routes(self, application: web.Application) -> None:
        """Called when the node is ready and the admin package has been imported, which takes 40 ms and delays no
        start."""
        from stratalog.ui import ClusterViews, UiHost, add_ui, why_no_records
        from stratalog_node.admin import AdminServices, NodeAdmin, NodeViews, NodeViewSources, add_admin_routes
        from stratalog_node.admin.cold import cold_read_status
        from stratalog_node.admin.followed import replication_status

        node = self._node
        services = AdminServices(
            node_id=self._settings.node_id,
            cluster_id=node.cluster_id,
            settings=self._settings,
            data_dir=self._data,
            layout=node.layout,
            kafka_address=f"{node.address[0]}:{node.address[1]}",
            started_ms=self._started_ms,
            now_ms=wall_ms,
            catalog=node.catalog,
            shards=node.shards,
            meta=node.meta,
            topic_changes=node.topic_changes,
            store=node.store,
            ask_roll=node.ask_roll,
            roll_elsewhere=node.roll_elsewhere,
            turn=node.turn,
            readiness=node.readiness,
            loop_blocks=lambda: self._watchdog.stats.blocks,
            tier_trouble=node.tier.trouble,
            store_away_ms=lambda: _store_away_ms(node),
            damage=node.damage,
            replication=lambda: replication_status(node.following, node.catalog),
            cold_reads=lambda: cold_read_status(node.remote_reads.cold),
            groups_given_up=lambda: node.groups.given_up,
        )
        measures = node.measures
        views = NodeViewSources(
            samples=lambda: measures.history.samples,
            groups=node.groups.hosted,
            sums=lambda: measures.groups.sums,
            lags_of=measures.groups.lags_of,
            clients=node.server.clients,
            read_assignment=node.groups.read_assignment,
        )
        admin = NodeAdmin(services, self._http.address)
        node.metrics.add("stratalog_find", admin.finder.stats)
        add_admin_routes(application, admin, NodeViews(services, views), node.audit)
        host, _ = split_address(self._http.address)
        meta = self._meta
        assert isinstance(meta, ClusterViews), "both the service and its client are asked for lists"
        no_records = why_no_records(host, has_token=self._access is not None)
        token, to_nodes = self._tls.token_for_nodes(self._token), self._tls.to(Part.NODE)
        add_ui(application, UiHost(lambda: meta, token, no_records, self._own_nodes, to_nodes))

    def _own_nodes(self) -> dict[int, str]:
        """As this process reaches it."""
        if not self._http.address:
            return {}
        host, port = split_address(self._http.address)
        reached = ("::1" if ":" in host else "127.0.0.1") if is_anywhere(host) else host
        return {self._settings.node_id: f"{self._tls.scheme}://{written(reached, port)}/"}

    async def start(self) -> str:
        """Returns the admin address, empty when it is off. Raises: Unavailable when an address is taken; then none of
        them runs."""
        try:
            return await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> str:
        self._watchdog.start()
        if self._settings.meta_listen and self._service_inside is not None:
            # The service's HTTP server imports aiohttp (0.2 s): in a thread, so that the event loop continues.
            await asyncio.to_thread(importlib.import_module, "stratalog_meta.api.server")
            from stratalog_meta.api.server import LIMITS, MetaServer

            limits = replace(
                self._within(LIMITS),
                max_connections=min(self._settings.meta_max_connections, self._node.open_files.http_connections),
                max_connections_per_ip=self._settings.meta_max_connections_per_ip,
                setting="meta.max.connections",
            )
            self._meta_server = MetaServer(
                self._service_inside,
                limits=limits,
                allowed_hosts=self._settings.http_allowed_hosts,
                access=self._access,
                token=self._tls.token_for_nodes(self._token),
                own_nodes=self._own_nodes,
                tls=self._tls.port,
                to_nodes=self._tls.to(Part.NODE),
                audit=self._node.audit,
            )
            self._node.metrics.add("stratalog_http", self._meta_server.stats, {"port": "meta"})
            await self._meta_server.start(*split_address(self._settings.meta_listen))
        if not self._settings.metrics_listen:
            return ""
        address = await self._http.start(self._settings.metrics_listen)
        self._node.page_url = self._page_url(address)
        return address

    def _page_url(self, address: str) -> str:
        """As browsers elsewhere may reach it: a port that is open to all is at the host that the node registered."""
        host, port = split_address(address)
        known = self._node.catalog.node(self._settings.node_id)
        if is_anywhere(host) and known is not None:
            host = known.host
        return f"{self._tls.scheme}://{written(host, port)}/"

    async def close(self) -> None:
        await self._http.stop()
        if self._meta_server is not None:
            await self._meta_server.close()
        self._watchdog.stop()


def _store_away_ms(node: StorageNode) -> int:
    uploader = node.tier.uploader
    return 0 if uploader is None else uploader.status().uploader.store_away_ms
