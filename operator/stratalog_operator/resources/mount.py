"""ReadOnlyMount: sealed data that is served read-only; of a retired node, of topics and a range of time, or what a
snapshot has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import AS_SET, Count, Part, ShortName, Time, checked, rule, rules


class RetiredNodeSource(Part):
    """All that a retired node held."""

    node_id: int = Field(ge=0, description="Of the retired node.")
    storage_id: str = Field(min_length=1, max_length=128, description="Of its disk.")
    mode: Literal["Offload", "RemountVolume"] = Field(
        default="Offload", description="Read from the object store, or from its volume where it is."
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
    ] = Field(description="Of the topics; each is read as NAME@ and the name of this object.")
    from_time: Time | None = Field(
        default=None, description="Segments with something from then on; none: from the oldest."
    )
    until_time: Time | None = Field(
        default=None, description="Segments with something before then; none: to the newest."
    )


class SnapshotSource(Part):
    """What a snapshot in the object store has, to the offset."""

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Of the snapshot, as `stratalog snapshot create` made it.",
    )
    topics: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=249)], ...],
        Field(max_length=100, json_schema_extra=AS_SET),
    ] = Field(default=(), description="Of its topics; none: all. Each is read as NAME@ and the name of this object.")


class Source(Part):
    """What is mounted. Fixed."""

    model_config = checked(
        rule(
            "[has(self.retiredNode), has(self.topics), has(self.snapshot)].filter(given, given).size() == 1",
            "source: give exactly one of retiredNode, topics and snapshot",
        ),
        rule("self == oldSelf", "source cannot be changed: make another ReadOnlyMount"),
    )
    retired_node: RetiredNodeSource | None = Field(default=None, description="All that a retired node held.")
    topics: TopicsSource | None = Field(default=None, description="What is sealed of these topics, of that time.")
    snapshot: SnapshotSource | None = Field(
        default=None, description="What a snapshot has, as far as retention left it."
    )

    @property
    def by_hand(self) -> TopicsSource | SnapshotSource | None:
        return self.topics or self.snapshot


class ReadOnlyMountSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule(
            "!has(self.ttlSeconds) || !has(self.source.retiredNode)",
            "ttlSeconds: the mount of a retired node ends on a person's word alone, for it may be the only way to "
            "its data",
        )
    )
    cluster_ref: ShortName = Field(
        description="The StorageCluster whose data it is; fixed.",
        json_schema_extra=rules(rule("self == oldSelf", "clusterRef cannot be changed: make another ReadOnlyMount")),
    )
    source: Source = Field(description="What is mounted.")
    ttl_seconds: int | None = Field(
        default=None, ge=1, le=315360000, description="It ends by itself after so long; none: never."
    )


class ReadOnlyMountStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    holder: str = Field(default="", max_length=64, description="The node that looks after it; empty: nobody need.")
    lock_epoch: Count = Field(default=0, description="Under which that node holds it.")
    endpoint: str = Field(default="", max_length=260, description="Where a volume is read; empty: it is no volume.")
    segments: Count = Field(default=0, description="That are mounted.")
    bytes: Count = Field(default=0, description="Of those segments.")
    ranges: Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=100)] = Field(
        default=(), description="TOPIC/SHARD BASE..END of what is mounted, the first hundred."
    )
    expires_at: Time | None = Field(default=None, description="When it ends by itself.")
