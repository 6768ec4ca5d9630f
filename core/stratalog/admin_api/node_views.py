"""What a node tells the cluster UI: its groups, clients, shards, throughput, and some records. All are bounded.

    GET /v1/shards?topic=&shard=&shard=              [ShardInfo]
    GET /v1/topic-settings?topic=                    TopicSettingsInForce
    GET /v1/groups?search=&sort=&descending=&limit=  GroupList
    GET /v1/group?id=&search=&sort=&descending=&offset=&limit=  GroupDetail
    GET /v1/clients?search=&sort=&descending=&limit= ClientList
    GET /v1/records?topic=&shard=&from=&at=&limit=   RecordPage
    GET /v1/history                                  HistoryAnswer

Each answer names the node that gives it: an address may lead to another node than the one that was meant.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from stratalog.admin_api.models import SettingInForce, ShardInfo
from stratalog.machines.plans.cluster_lists import Column

MAX_SHARDS_ASKED: Final = 500
MAX_RECORDS: Final = 200
MAX_KEY_BYTES: Final = 4 << 10
MAX_VALUE_BYTES: Final = 64 << 10
"""Of one record in an answer: a longer value is cut."""
MAX_HEADERS: Final = 50


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class LedShards(_Answer):
    node_id: int
    items: list[ShardInfo]


class TopicSettingsInForce(_Answer):
    node_id: int
    items: list[SettingInForce]


# Groups and clients ---------------------------------------------------------------------------------------------------
class GroupRow(_Answer):
    group_id: str
    state: str
    kind: str
    """`classic` or `consumer`."""
    members: int
    lag: int
    """Records behind, of all shards whose end is known; uncommitted ones from their log start."""
    shards: int
    uncommitted: int
    """Shards that members read without a committed offset."""
    unknown: int
    """Shards whose end is not known, so that they are not in the lag."""
    node_id: int
    """Its coordinator."""


class GroupList(_Answer):
    node_id: int
    items: list[GroupRow]
    total: int


class GroupMemberRow(_Answer):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    shards: int
    """That it is to read; -1: not known."""


class GroupLagRow(_Answer):
    topic: str
    shard: int
    committed: int | None
    position: int
    """Where the lag counts from."""
    end: int | None
    """None: its leader did not answer."""
    lag: int | None
    member: str | None = None


class GroupTopicRow(_Answer):
    topic: str
    shards: int
    lag: int
    uncommitted: int


class GroupDetail(_Answer):
    node_id: int
    line: GroupRow
    generation: int
    assignor: str
    members: list[GroupMemberRow]
    """The first ones."""
    topics: list[GroupTopicRow]
    """Those with the most lag."""
    more_topics: int
    items: list[GroupLagRow]
    total: int


class ClientRow(_Answer):
    client_id: str
    address: str
    listener: str
    principal: str = ""
    """Empty: of a node of an earlier version."""
    idle_ms: int
    node_id: int

    @property
    def words(self) -> str:
        """What a search looks at."""
        return f"{self.client_id} {self.principal} {self.address}"


class ClientList(_Answer):
    node_id: int
    items: list[ClientRow]
    total: int


# Records --------------------------------------------------------------------------------------------------------------
class RecordStart(StrEnum):
    NEWEST = "newest"
    OLDEST = "oldest"
    OFFSET = "offset"
    TIME = "time"


class Bytes(_Answer):
    """The beginning of some bytes, as base64."""

    data: str
    size: int
    """Of all of them."""

    @property
    def raw(self) -> bytes:
        return base64.b64decode(self.data)


class RecordHeader(_Answer):
    name: str
    value: Bytes | None


class ShownRecord(_Answer):
    shard: int
    offset: int
    timestamp_ms: int
    key: Bytes | None
    value: Bytes | None
    headers: list[RecordHeader]
    more_headers: int = 0


class ShownRange(_Answer):
    """Which part of a shard a search went through."""

    shard: int
    log_start_offset: int
    high_watermark: int
    from_offset: int
    next_offset: int
    """Where the next search begins; the high watermark if there is nothing more."""
    why_not: str | None = None
    """Why it could not be read, or not all of it."""


class RecordPage(_Answer):
    node_id: int
    topic: str
    records: list[ShownRecord]
    shards: list[ShownRange]


def cut_bytes(data: bytes | None, most: int) -> Bytes | None:
    if data is None:
        return None
    return Bytes(data=base64.b64encode(data[:most]).decode(), size=len(data))


# Throughput -----------------------------------------------------------------------------------------------------------
class HistorySample(_Answer):
    at_ms: int
    appended_bytes: int
    """A counter since the process began, as the next one."""
    fetched_bytes: int
    upload_lag_bytes: int
    consumer_lag: int


class HistoryAnswer(_Answer):
    node_id: int
    samples: list[HistorySample]


# Sorting --------------------------------------------------------------------------------------------------------------
GROUP_COLUMNS: Final[Mapping[str, Column[GroupRow]]] = {
    "group": lambda line: line.group_id,
    "state": lambda line: line.state,
    "members": lambda line: line.members,
    "lag": lambda line: line.lag,
    "uncommitted": lambda line: line.uncommitted,
}
LAG_COLUMNS: Final[Mapping[str, Column[GroupLagRow]]] = {
    "shard": lambda row: (row.topic, row.shard),
    "lag": lambda row: -1 if row.lag is None else row.lag,
    "committed": lambda row: -1 if row.committed is None else row.committed,
    "member": lambda row: row.member or "",
}
CLIENT_COLUMNS: Final[Mapping[str, Column[ClientRow]]] = {
    "client": lambda line: line.client_id,
    "address": lambda line: line.address,
    "listener": lambda line: line.listener,
    "principal": lambda line: line.principal,
    "idle": lambda line: line.idle_ms,
}
