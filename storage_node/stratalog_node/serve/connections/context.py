"""What a request handler may use: the node's services, and the connection of the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.kafka.frames import RequestHeader
from stratalog.machines.audit.lines import Asker
from stratalog.machines.quotas.usage import ClientUsage
from stratalog.meta_api.client import MetaClient
from stratalog.model.listeners import INTERNAL
from stratalog.model.rights import ANONYMOUS, Principal
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.audit_log import NO_AUDIT, AuditLog
from stratalog_node.groups.coordinator import GroupCoordinator
from stratalog_node.serve.connections.client_rights import UNLIMITED, ClientRights
from stratalog_node.serve.connections.control_state import ControlState
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.flush.shard_lookup import DiskView, ShardLookups
from stratalog_node.topic_changes import TopicChanges


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """The other end of a connection."""

    peer: str
    listener_host: str
    listener_port: int
    """The advertised address of the listener this client came through: what Metadata answers of this node."""
    listener: str = INTERNAL
    """Its name: of other nodes Metadata answers their addresses of that name."""
    principal: Principal = ANONYMOUS
    """Who the other end has proven to be."""

    @property
    def asker(self) -> Asker:
        """As the audit log names it."""
        return Asker(str(self.principal), self.peer.rpartition(":")[0])


@dataclass(frozen=True, slots=True)
class NodeServices:
    """Everything one storage node is made of, as handlers see it."""

    node_id: int
    cluster_id: str
    settings: ProcessSettings
    meta: MetaClient
    catalog: Catalog
    shards: ShardLookups
    disk: DiskView
    groups: GroupCoordinator
    topic_changes: TopicChanges
    control: ControlState
    """What control handlers keep between requests."""
    audit: AuditLog = NO_AUDIT


class RequestUsage:
    """What one control request uses of its client's quotas, while its handler runs."""

    __slots__ = ("_now_ms", "of_client", "wait_ms")

    def __init__(self, of_client: ClientUsage, now_ms: Callable[[], int]) -> None:
        self.of_client = of_client
        self._now_ms = now_ms
        self.wait_ms = 0
        """How long its client has to wait for what was created and deleted."""

    def mutate(self, partitions: int, *, is_strict: bool) -> bool:
        """So many partitions are to be created or deleted. False: not now; only a strict request is refused."""
        tokens = self.of_client.mutations
        if tokens is None:
            return True
        wait_ms = (tokens.charge_strictly if is_strict else tokens.charge)(partitions, self._now_ms())
        self.wait_ms = max(self.wait_ms, wait_ms)
        return not (is_strict and wait_ms)


@dataclass(frozen=True, slots=True)
class RequestContext:
    services: NodeServices
    header: RequestHeader
    connection: ConnectionInfo
    rights: ClientRights = UNLIMITED
    usage: RequestUsage | None = None
    """None where the client has no quota."""
