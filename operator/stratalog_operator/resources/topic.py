"""TopicStorage: a topic. Kubernetes -> cluster, one way."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import Count, Part, ShortName, Time, checked, immutable, rule, rules


class Tiering(Part):
    """Where its data are kept, and for how long."""

    model_config = checked(
        rule(
            "!has(self.hotRetentionSeconds) || self.retentionSeconds == -1 || "
            "self.hotRetentionSeconds <= self.retentionSeconds",
            "tiering: hotRetentionSeconds must not exceed retentionSeconds (-1: forever)",
        ),
        rule(
            "self.enabled || (!has(self.hotRetentionSeconds) && !has(self.hotBytes))",
            "tiering: hotRetentionSeconds and hotBytes need tiering.enabled: without a cold tier all data are hot",
        ),
    )
    enabled: bool = Field(default=True, description="Sealed data move to the object store.")
    hot_retention_seconds: int | None = Field(
        default=None, ge=0, description="Offloaded data stay on disks for so long; none: as long as there are any."
    )
    hot_bytes: int | None = Field(
        default=None, ge=0, description="Offloaded data stay on disks up to so many bytes of each shard."
    )
    retention_seconds: int = Field(default=604800, ge=-1, description="Data older than this are deleted; -1: never.")
    retention_bytes: int = Field(
        default=-1, ge=-1, description="Data above so many bytes of each shard are deleted, oldest first; -1: no limit."
    )


class TopicStorageSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule(
            "self.minInsyncReplicas <= self.replicationFactor",
            "minInsyncReplicas must not exceed replicationFactor, or no write with acks=all is ever taken",
        )
    )
    cluster_ref: ShortName = Field(
        description="The StorageCluster that has the topic; fixed.",
        json_schema_extra=immutable("clusterRef", "make another TopicStorage"),
    )
    topic_name: str = Field(
        min_length=1,
        max_length=249,
        pattern="^[A-Za-z0-9._-]+$",
        description="Of the topic; fixed.",
        json_schema_extra=rules(
            rule("self == oldSelf", "topicName cannot be changed: make another TopicStorage"),
            rule("self != '.' && self != '..'", "topicName: . and .. are no names of topics"),
        ),
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=10000,
        description="How many shards it has; it may grow.",
        json_schema_extra=rules(
            rule("self >= oldSelf", "shards cannot get fewer: records are found by the number of shards")
        ),
    )
    replication_factor: int = Field(default=3, ge=1, le=100, description="Replicas of each segment.")
    min_insync_replicas: int = Field(
        default=2, ge=1, le=100, description="Replicas that must be in sync for acks=all to be taken."
    )
    policy: Literal["Replicated"] = Field(
        default="Replicated", description="When a record is acknowledged: Replicated, in the in-sync replicas."
    )
    unclean_seal: Literal["Deny", "Allow"] = Field(
        default="Deny", description="Whether a shard that lost all in-sync replicas goes on with what is known."
    )
    config: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=50,
            json_schema_extra=rules(
                rule(
                    "self.all(key, !(key in ['min.insync.replicas', 'remote.storage.enable', 'retention.ms', "
                    "'retention.bytes', 'local.retention.ms', 'local.retention.bytes', 'uncleanSeal']))",
                    "config: what has a field of its own is set there: minInsyncReplicas, tiering, uncleanSeal",
                )
            ),
        ),
    ] = Field(default={}, description="Other settings of the topic by their keys (docs/configure.md).")
    tiering: Tiering = Field(default=Tiering(), description="Where its data are kept, and for how long.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain", description="What becomes of the topic when this object is deleted."
    )
    adoption: Literal["CreateOnly", "Adopt"] = Field(
        default="CreateOnly", description="Whether a topic of that name that is there already is taken over."
    )


class ObservedTopic(Part):
    """The topic as it is."""

    shards: Count = Field(default=0, description="Shards that it has.")
    replication_factor: Count = Field(default=0, description="Replicas that it asks for.")
    policy: str = Field(default="", max_length=32, description="By which records are acknowledged.")


class TopicTiers(Part):
    """Where its bytes are. Told again when one of them has moved by a fiftieth."""

    hot_bytes: Count = Field(default=0, description="Of sealed segments on disks, each replica counted.")
    cold_bytes: Count = Field(
        default=0, description="In the object store, of sealed segments and of those that are being written."
    )
    commit_lag_bytes: Count = Field(
        default=0, description="Of sealed segments, what is not in the object store yet; 0 without a cold tier."
    )
    oldest_offset: Count = Field(
        default=0, description="The smallest first offset of its shards: nothing older can be read of any of them."
    )


class TopicStorageStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    topic_id: str = Field(
        default="", max_length=64, description="Of the topic; another one is another topic of that name."
    )
    observed: ObservedTopic = Field(default=ObservedTopic(), description="The topic as it is.")
    tiering: TopicTiers = Field(default=TopicTiers(), description="Where its bytes are.")
    deletion_waits_since: Time | None = Field(
        default=None, description="Since when the deletion of the topic has had no answer."
    )
