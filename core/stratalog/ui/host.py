"""What the process that serves the UI knows, and what it hands in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stratalog.machines.plans.heartbeat_history import Course
from stratalog.model.addresses import is_loopback
from stratalog.model.tokens import Token
from stratalog.model.views.cluster_lists import ListAsk, SegmentPage, ShardPage, TopicPage, TroublePage
from stratalog.model.views.status_page import Overview
from stratalog.tls.outgoing import ClientTls


@runtime_checkable
class ClusterViews(Protocol):
    """The metadata as the UI asks for them. Raises StratalogError."""

    async def overview(self) -> Overview: ...

    async def courses(self, after_ms: int) -> Sequence[Course]: ...

    async def topic_page(self, ask: ListAsk) -> TopicPage: ...

    async def shard_page(self, topic: str, ask: ListAsk) -> ShardPage: ...

    async def segment_page(self, topic: str, shard: int, ask: ListAsk, place: str = "") -> SegmentPage: ...

    async def trouble_page(self, ask: ListAsk, kind: str = "") -> TroublePage: ...


@dataclass(frozen=True, slots=True)
class Process:
    """One of the processes of a cluster that runs on this machine."""

    name: str
    state: str
    words: str
    leads: bool
    addresses: Mapping[str, str]


def _none() -> Mapping[int, str]:
    return {}


def _no_processes() -> Sequence[Process]:
    return ()


@dataclass(frozen=True, slots=True)
class UiHost:
    views: Callable[[], ClusterViews]
    """Raises StratalogError: NotLeader where another instance is to be asked."""
    token: Token | None = None
    """What is shown to nodes."""
    why_no_records: str | None = None
    """Why this port shows no records of nodes other than those of `own_nodes`; None: it shows all."""
    own_nodes: Callable[[], Mapping[int, str]] = _none
    """Nodes of this process by their id, with the URL of their admin port."""
    to_nodes: ClientTls | None = None
    """What is spoken with nodes whose admin ports have https://."""
    processes: Callable[[], Sequence[Process]] = _no_processes


def why_no_records(listen_host: str, *, has_token: bool) -> str | None:
    """A port shows the records of other nodes if it asks for a token, or if only this machine reaches it: a node's own
    admin port may be more private than the port that would show its records."""
    if has_token or is_loopback(listen_host):
        return None
    return (
        "this port asks for no token and other machines reach it, so it shows no records of other nodes: set "
        "auth.token.file, or open the page of the node that leads the shard"
    )
