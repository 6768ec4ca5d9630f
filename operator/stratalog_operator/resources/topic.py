"""TopicStorage: a topic. Kubernetes -> cluster, one way.

No setting has a default here: the API server would write it into the object, and it would override the cluster's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.requests import SealStatus, since_1970
from stratalog_operator.resources.schema import Count, Part, ShortName, Time, checked, immutable, rule, rules


class Tiering(Part):
    """Where its data are kept, and for how long."""

    model_config = checked(
        rule(
            "!has(self.hotRetentionSeconds) || !has(self.retentionSeconds) || self.retentionSeconds == -1 || "
            "self.hotRetentionSeconds <= self.retentionSeconds",
            "tiering: hotRetentionSeconds must not exceed retentionSeconds (-1: forever)",
        ),
        rule(
            "!has(self.enabled) || self.enabled || (!has(self.hotRetentionSeconds) && !has(self.hotBytes))",
            "tiering: hotRetentionSeconds and hotBytes need tiering.enabled: without a cold tier all data is hot",
        ),
        rule(
            "!has(self.enabled) || self.enabled || !has(self.storageClass)",
            "tiering: storageClass needs tiering.enabled: without a cold tier nothing is uploaded",
        ),
        rule(
            "!has(self.enabled) || self.enabled || !has(self.compression)",
            "tiering: compression needs tiering.enabled: without a cold tier nothing is uploaded",
        ),
        rule(
            "!has(self.enabled) || self.enabled || !has(self.uploadIntervalSeconds)",
            "tiering: uploadIntervalSeconds needs tiering.enabled: without a cold tier nothing is uploaded",
        ),
        rule(
            "!has(self.enabled) || self.enabled || (!has(self.archiveAfterSeconds) && !has(self.archiveClass))",
            "tiering: archiveAfterSeconds and archiveClass need tiering.enabled: without it nothing is uploaded",
        ),
    )
    enabled: bool | None = Field(
        default=None, description="Whether sealed data moves to the object store. Default: the cluster's."
    )
    storage_class: (
        Literal[
            "STANDARD",
            "STANDARD_IA",
            "ONEZONE_IA",
            "INTELLIGENT_TIERING",
            "GLACIER_IR",
            "NEARLINE",
            "COLDLINE",
            "ARCHIVE",
            "COOL",
            "COLD",
        ]
        | None
    ) = Field(
        default=None,
        description="Storage class for data that is uploaded from now on; STANDARD is the bucket's default. NEARLINE, "
        "COLDLINE and ARCHIVE are classes of Google Cloud Storage, COOL and COLD of Azure, the others of S3. Default: "
        "the cluster's.",
    )
    compression: Literal["none", "zstd"] | None = Field(
        default=None,
        description="Whether data that is uploaded from now on is compressed, if clients have not compressed it. "
        "Default: the cluster's.",
    )
    upload_interval_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Longest time that a record waits before it is uploaded. Default: the cluster's.",
    )
    archive_after_seconds: int | None = Field(
        default=None,
        ge=-1,
        description="Age after which `stratalog pipeline compact` moves data to archiveClass, which must be restored "
        "before it is read; -1: never. Default: never.",
    )
    archive_class: Literal["GLACIER", "DEEP_ARCHIVE"] | None = Field(
        default=None, description="Storage class of S3 for archived data. Default: GLACIER."
    )
    hot_retention_seconds: int | None = Field(
        default=None, ge=0, description="How long offloaded data stays on disks. Default: the cluster's."
    )
    hot_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Bytes of offloaded data of each shard that stay on disks. Default: the cluster's.",
    )
    retention_seconds: int | None = Field(
        default=None, ge=-1, description="Age after which data is deleted; -1: never. Default: the cluster's."
    )
    retention_bytes: int | None = Field(
        default=None,
        ge=-1,
        description="Size of each shard above which its oldest data is deleted; -1: no limit. Default: the cluster's.",
    )


class TopicStorageSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule(
            "!has(self.minInsyncReplicas) || !has(self.replicationFactor) || "
            "self.minInsyncReplicas <= self.replicationFactor",
            "minInsyncReplicas must not exceed replicationFactor, or no write with acks=all is ever accepted",
        ),
        rule(
            "!has(self.policy) || self.policy != 'Direct' || !has(self.tiering.enabled) || self.tiering.enabled",
            "policy Direct acknowledges what is in the object store: it needs tiering.enabled",
        ),
        rule(
            "!has(self.policy) || self.policy != 'Direct' || !has(self.tiering.uploadIntervalSeconds)",
            "tiering: uploadIntervalSeconds has no effect with policy Direct: data go up at direct.commit.interval.ms",
        ),
    )
    cluster_ref: ShortName = Field(
        description="StorageCluster of the topic; fixed.",
        json_schema_extra=immutable("clusterRef", "create another TopicStorage"),
    )
    topic_name: str = Field(
        min_length=1,
        max_length=249,
        pattern="^[A-Za-z0-9._-]+$",
        description="Name of the topic; fixed.",
        json_schema_extra=rules(
            rule("self == oldSelf", "topicName cannot be changed: create another TopicStorage"),
            rule("self != '.' && self != '..'", "topicName: . and .. are not allowed"),
        ),
    )
    shards: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Number of shards; it may grow. Default: the cluster's, or those of the adopted topic.",
        json_schema_extra=rules(
            rule("self >= oldSelf", "shards cannot be reduced: keys are mapped to shards by their number")
        ),
    )
    replication_factor: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Replicas of each segment. Default: the cluster's, or those of the adopted topic.",
    )
    min_insync_replicas: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Replicas that must be in sync for a write with acks=all to be accepted. Default: the cluster's.",
    )
    policy: Literal["Replicated", "Direct"] | None = Field(
        default=None,
        description="When a record is acknowledged: Replicated, in the in-sync replicas; Direct, in the object store, "
        "and no node replicates it (docs/direct-spec.md). It may change. Default: Replicated.",
    )
    unclean_seal: Literal["Deny", "Allow"] | None = Field(
        default=None,
        description="Whether a shard that lost all in-sync replicas continues with the data that is left. Default: "
        "Deny.",
    )
    config: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=50,
            json_schema_extra=rules(
                rule(
                    "self.all(key, !(key in ['min.insync.replicas', 'remote.storage.enable', 'retention.ms', "
                    "'retention.bytes', 'local.retention.ms', 'local.retention.bytes', 'remote.storage.class', "
                    "'remote.compression', 'remote.upload.interval.ms', 'archive.after.ms', "
                    "'archive.storage.class', 'storage.policy', 'uncleanSeal']))",
                    "config: use the fields minInsyncReplicas, policy, tiering and uncleanSeal for these settings",
                )
            ),
        ),
    ] = Field(default={}, description="Other settings of the topic, by key (docs/configure.md).")
    tiering: Tiering = Field(default=Tiering(), description="Where the data is stored, and for how long.")
    seal_requested_at: Time | None = Field(
        default=None,
        description="Seals the segments that are being written, once, at this time, if it is newer than the last "
        "request and than this object.",
        json_schema_extra=since_1970("sealRequestedAt"),
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain", description="What happens to the topic when this object is deleted."
    )
    adoption: Literal["CreateOnly", "Adopt"] = Field(
        default="CreateOnly",
        description="Whether an existing topic with this name is adopted. With Adopt, the operator changes only the "
        "settings that this object names; with CreateOnly, all others have the cluster's defaults.",
    )


class ObservedTopic(Part):
    """The topic as it is."""

    shards: Count = Field(default=0, description="Number of shards.")
    replication_factor: Count = Field(default=0, description="Replicas of each segment.")
    policy: str = Field(
        default="",
        max_length=32,
        description="When records are acknowledged: Replicated (in the in-sync replicas), Quorum (in most replicas) or "
        "Direct (in the object store).",
    )


class TopicTiers(Part):
    """Where its bytes are. Told again when one of them has moved by a fiftieth."""

    hot_bytes: Count = Field(default=0, description="Bytes of sealed segments on disks, counting each replica.")
    cold_bytes: Count = Field(default=0, description="Bytes in the object store, of sealed and of active segments.")
    commit_lag_bytes: Count = Field(
        default=0, description="Bytes of sealed segments that are not in the object store yet; 0 without a cold tier."
    )
    oldest_offset: Count = Field(
        default=0, description="Smallest first offset of all shards; nothing older can be read."
    )


class TopicStorageStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    topic_id: str = Field(
        default="",
        max_length=64,
        description="Id of the topic; a topic of the same name with another id is another topic.",
    )
    adopted: bool = Field(
        default=False, description="Whether the topic was adopted; settings that the object does not name stay then."
    )
    observed: ObservedTopic = Field(default=ObservedTopic(), description="The topic as it is now.")
    tiering: TopicTiers = Field(default=TopicTiers(), description="Where the bytes of the topic are stored.")
    seal: SealStatus | None = Field(default=None, description="The newest request to seal its segments.")
    deletion_waits_since: Time | None = Field(
        default=None, description="Since when the deletion of the topic has been waiting for an answer."
    )
