"""Fetches of other nodes: authenticates them, and holds the sessions of followers.

A follower presents its node id and the token of its present life. Only nodes get tokens, through the watch, so a client
cannot read above the high watermark or move it, whatever replica id it makes up. Where nodes have certificates, a token
counts only from its own node. With the same token any node may read sealed segments (`sealed_read.py`).
Lives on the event loop. Source: docs/replication.md sections 2 to 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from stratalog.kafka.error_codes import ErrorCode
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.replica_fetch import NO_SESSION, ReplicaFetch, decode_replica_fetch
from stratalog.machines.following.fetch_session import SessionFault
from stratalog.machines.rights.members import may_replicate
from stratalog.model.metadata import Change, Life, Node, NodeChanged
from stratalog.telemetry.bounded_lines import BoundedLines
from stratalog.telemetry.logs import logger
from stratalog_node.serve.connections.connection import Connection
from stratalog_node.serve.fetching.fetch_scheduler import FetchScheduler
from stratalog_node.serve.replicas.replica_round import ReplicaRound
from stratalog_node.serve.replicas.replica_session import ReplicaSession
from stratalog_node.serve.replicas.sealed_read import SealedRead
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.directory import ShardDirectory

log = logger(__name__)

_FORMER_TOKENS = 8
"""For each node: enough to recognise an old life's token."""
_NAMED_IN_VAIN = 10_000
_FAULTS = {
    SessionFault.UNKNOWN: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    SessionFault.WRONG_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
}


class ReplicaRequests:
    def __init__(
        self,
        catalog: Catalog,
        shards: ShardDirectory,
        fetches: FetchScheduler,
        proved: Callable[[Connection, int], None],
        *,
        are_certain: bool = False,
    ) -> None:
        """`proved` is called with each connection that has shown a living node's token, and that node's id.
        `are_certain`: nodes prove by certificates who they are, and each fetches under its own id alone."""
        self._are_certain = are_certain
        self._lines = BoundedLines(log, lambda: fetches.turn.steady_ms, "the audit log counts denials")
        self._shards = shards
        self._proved = proved
        self._fetches = fetches
        self._catalog = catalog
        self._followers: dict[Connection, _Follower] = {}
        self._session_ids = itertools.count(1)
        self._tokens: dict[int, int] = {node.node_id: node.token for node in catalog.nodes()}
        self._former: dict[int, tuple[int, ...]] = {}
        catalog.on_change(self._on_change)

    def _on_change(self, change: Change) -> None:
        if isinstance(change, NodeChanged):
            node = change.node
            before = self._tokens.get(node.node_id)
            if before is not None and before != node.token:
                self._former[node.node_id] = (*self._former.get(node.node_id, ()), before)[-_FORMER_TOKENS:]
            self._tokens[node.node_id] = node.token

    def handle(self, connection: Connection, header: RequestHeader, frame: memoryview) -> bool:
        """False if the sender is not a replica; it then gets "unsupported version". Raises: MalformedFrame."""
        request = decode_replica_fetch(frame, header.body_position, self._shards.count + _NAMED_IN_VAIN)
        if request.replica_id < 0:
            return False
        self._fetches.turn.request()
        node = self._catalog.node(request.replica_id)
        code = self._why_not(node, request, connection)
        if not code:
            self._proved(connection, request.replica_id)
        if request.is_sealed_read:
            read = SealedRead(self._fetches, connection, header.correlation_id)
            connection.expect_answer(read)
            if code:
                read.refuse(code)
            else:
                read.begin(self._shards, request)
            return True
        round_ = ReplicaRound(self._fetches, connection, header.correlation_id, request)
        connection.expect_answer(round_)
        if code or node is None:
            self.forget(connection)
            round_.finish(error_code=code)
            return True
        follower = self._follower(connection, request, node)
        if follower is not None:
            follower.end_held()
        fault = SessionFault.UNKNOWN if follower is None else follower.session.update(request)
        if follower is None or fault is not None:
            self.forget(connection)
            round_.finish(error_code=_FAULTS[fault or SessionFault.UNKNOWN])
        else:
            follower.held = round_
            round_.begin(follower.session)
        return True

    def _why_not(self, node: Node | None, request: ReplicaFetch, connection: Connection) -> int:
        if self._are_certain and not may_replicate(connection.info.principal, request.replica_id):
            self._tell_of(connection, request.replica_id)
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if node is not None and request.token == node.token and node.token > 0:
            return 0
        if request.token in self._former.get(request.replica_id, ()):
            return ErrorCode.STALE_BROKER_EPOCH
        # Perhaps it registered a moment ago, and this node has not heard of it yet.
        return ErrorCode.BROKER_ID_NOT_REGISTERED

    def _tell_of(self, connection: Connection, replica_id: int) -> None:
        self._lines.warning(
            "a fetch of a replica is refused: the certificate of its sender is not that node's",
            peer=connection.info.peer,
            node_id=replica_id,
            sender=str(connection.info.principal),
        )

    def _follower(self, connection: Connection, request: ReplicaFetch, node: Node) -> _Follower | None:
        """This connection's, begun again where it is asked so. One life of a node to a session."""
        if request.session_id == NO_SESSION:
            self.forget(connection)
            self._followers[connection] = _Follower(self._shards, node.life, next(self._session_ids), self._fetches)
        follower = self._followers.get(connection)
        return follower if follower is not None and follower.session.life == node.life else None

    def forget(self, connection: Connection) -> None:
        """It is closed, or begins again."""
        follower = self._followers.pop(connection, None)
        if follower is not None:
            follower.end_held()
            follower.session.close()


class _Follower:
    """A session, and the round that it holds."""

    __slots__ = ("held", "session")

    def __init__(self, shards: ShardDirectory, life: Life, session_id: int, scheduler: FetchScheduler) -> None:
        self.session = ReplicaSession(shards, life, session_id, self._moved, scheduler)
        self.held: ReplicaRound | None = None

    def _moved(self) -> None:
        if self.held is not None:
            self.held.collect_soon()

    def end_held(self) -> None:
        held, self.held = self.held, None
        if held is not None:
            held.end()
