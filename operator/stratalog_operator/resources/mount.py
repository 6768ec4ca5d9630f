"""ReadOnlyMount: sealed data that is served read-only; of a retired node, of topics and a range of time, or what a
snapshot has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import AS_SET, Count, Part, ShortName, Time, checked, rule, rules


class RetiredNodeSource(Part):
    """All that a retired node held."""

    node_id: int = Field(ge=0, description="Id of the retired node.")
    storage_id: str = Field(min_length=1, max_length=128, description="Id of its disk.")
    mode: Literal["Offload", "RemountVolume"] = Field(
        default="Offload", description="Whether its data is read from the object store, or from its volume in place."
    )


class TopicsSource(Part):
    """What is sealed of these topics, of that time."""

    model_config = checked(
        rule(
            "!has(self.fromTime) || !has(self.untilTime) || timestamp(self.fromTime) < timestamp(self.untilTime)",
            "source.topics: fromTime must be before untilTime",
        )
    )
    names: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=249)], ...],
        Field(min_length=1, max_length=100, json_schema_extra=AS_SET),
    ] = Field(description="Names of the topics; each is read as NAME@ and the name of this object.")
    from_time: Time | None = Field(
        default=None, description="Segments with records of this time or later. Default: from the oldest segment."
    )
    until_time: Time | None = Field(
        default=None, description="Segments with records before this time. Default: to the newest segment."
    )


class SnapshotSource(Part):
    """What a snapshot in the object store has, to the offset."""

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the snapshot, as given to `stratalog snapshot create`.",
    )
    topics: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=249)], ...],
        Field(max_length=100, json_schema_extra=AS_SET),
    ] = Field(
        default=(),
        description="Names of topics in the snapshot. Default: all. Each is read as NAME@ and the name of this object.",
    )


class Source(Part):
    """What is mounted. Fixed."""

    model_config = checked(
        rule(
            "[has(self.retiredNode), has(self.topics), has(self.snapshot)].filter(given, given).size() == 1",
            "source: give exactly one of retiredNode, topics and snapshot",
        ),
        rule("self == oldSelf", "source cannot be changed: create another ReadOnlyMount"),
    )
    retired_node: RetiredNodeSource | None = Field(default=None, description="Everything that a retired node held.")
    topics: TopicsSource | None = Field(default=None, description="The sealed segments of topics in a time range.")
    snapshot: SnapshotSource | None = Field(
        default=None, description="The contents of a snapshot, as far as retention has left them."
    )

    @property
    def by_hand(self) -> TopicsSource | SnapshotSource | None:
        return self.topics or self.snapshot


class ReadOnlyMountSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule(
            "!has(self.ttlSeconds) || !has(self.source.retiredNode)",
            "ttlSeconds: not allowed for a retired node: its mount may be the only way to its data, so only a "
            "person ends it",
        )
    )
    cluster_ref: ShortName = Field(
        description="StorageCluster of the data; fixed.",
        json_schema_extra=rules(rule("self == oldSelf", "clusterRef cannot be changed: create another ReadOnlyMount")),
    )
    source: Source = Field(description="What is mounted.")
    ttl_seconds: int | None = Field(
        default=None, ge=1, le=315360000, description="Time after which the mount ends by itself. Default: never."
    )


class ReadOnlyMountStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    holder: str = Field(default="", max_length=64, description="Node that holds the mount; empty if none needs to.")
    lock_epoch: Count = Field(default=0, description="Epoch of the write lock under which the node holds it.")
    endpoint: str = Field(
        default="", max_length=260, description="Address at which a volume is read; empty if it is not a volume."
    )
    segments: Count = Field(default=0, description="Number of mounted segments.")
    bytes: Count = Field(default=0, description="Bytes of the mounted segments.")
    ranges: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=100)] = Field(
        default=(), description="Mounted ranges as TOPIC/SHARD BASE..END; the first hundred."
    )
    expires_at: Time | None = Field(default=None, description="When the mount ends by itself.")
