"""The settings of one process: every server-side key, its unit, default, bounds and meaning.

Keys keep Kafka's names where Kafka has one; the attribute is the key with underscores for dots. Sources and their
order are in `settings.load`; how settings must relate to each other is in `settings.relations` and checked here, so
that no ProcessSettings exists that breaks one. Frozen: a change means a new object. Reading a field is an attribute
look-up, fit for the hot path.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from stratalog.machines.table_topics import MAX_SHARDS_PER_TOPIC
from stratalog.settings.choices import FlushPolicy, GroupMigrationPolicy, ReadPolicy, TimestampType
from stratalog.settings.doors import DoorSettings
from stratalog.settings.relations import PROCESS_RELATIONS, assert_relations
from stratalog.settings.units import DAY_MS, GIB, HOUR_MS, INT32_MAX, INT64_MAX, KIB, MIB, MINUTE_MS, SECOND_MS


class ProcessSettings(DoorSettings):
    """What one `stratalog start` runs with. Build it from users' input with `settings.load`, from code by keyword."""

    # New topics -------------------------------------------------------------------------------------------------
    num_partitions: int = Field(
        default=1,
        ge=1,
        le=MAX_SHARDS_PER_TOPIC,
        description="Shards of a topic that is created without a count.",
    )
    default_replication_factor: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Replicas of a topic that is created without a replication factor; each needs a node of its own: 1 "
        "in a process that runs the meta service itself.",
    )
    replica_lag_time_max_ms: int = Field(
        default=10 * SECOND_MS,
        ge=100,
        le=1 * HOUR_MS,
        description="A follower that has not reached, for so long, where its leader's end was is not in sync any more. "
        "One whose lease is over is not waited for at all.",
    )
    replica_replace_after_ms: int = Field(
        default=10 * MINUTE_MS,
        ge=100,
        le=30 * DAY_MS,
        description="How long a node is not alive before others copy what it held, of segments that are not whole in "
        "the object store, by a meta service of its own process. What was copied so goes again once all the others "
        "have been alive for as long.",
    )
    meta_snapshot_interval_ms: int = Field(
        default=MINUTE_MS,
        ge=100,
        le=DAY_MS,
        description="How often a meta service that knows the bucket puts a snapshot of the metadata there, when "
        "something has changed. Sooner when a node waits to free copies that no snapshot tells of yet.",
    )
    retire_verify_interval_ms: int = Field(
        default=30_000, ge=100, le=DAY_MS, description="How far apart the two looks at a node that is retired are."
    )
    replica_catchup_bytes_per_second: int = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=1_024 * GIB,
        description="Most bytes per second that this node takes for all copies together that are out of the ISR or "
        "made again: nobody's acknowledgement waits for these. What is in the ISR is not limited.",
    )
    read_replica_min_bytes: int = Field(
        default=16 * MIB,
        ge=-1,
        le=INT64_MAX,
        description="A consumer that names its rack is sent to another replica, one of its rack first, where that has "
        "at least so many sealed bytes from its offset on; -1 sends nobody away.",
    )
    auto_create_topics_enable: bool = Field(
        default=True,
        description="Create a topic when a client first asks for its metadata and allows it.",
    )
    topic_settings_without_effect_enable: bool = Field(
        default=False,
        description="Take settings of topics that Kafka has and that mean nothing here, such as segment.index.bytes, "
        "and show them as without effect; else they are refused.",
    )
    min_insync_replicas: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Replicas that must be in sync for a write with acks=all to be taken.",
    )

    # Segments on disk -------------------------------------------------------------------------------------------
    log_segment_bytes: int = Field(
        default=1 * GIB,
        ge=256,
        le=64 * GIB,
        description="A segment that reaches this size rolls.",
    )
    log_roll_ms: int = Field(
        default=7 * DAY_MS,
        ge=1,
        le=INT64_MAX,
        description="A segment whose first record is this old rolls.",
    )
    flush_policy: FlushPolicy = Field(
        default=FlushPolicy.REPLICATED,
        description="When an append is acknowledged: in the page cache of the in-sync replicas (replicated) or after "
        "a grouped fdatasync (fsync).",
    )
    flush_interval_ms: int = Field(
        default=30 * SECOND_MS,
        ge=1,
        le=1 * HOUR_MS,
        description="Most time between an append under the replicated policy and its flush in the background.",
    )
    disk_reserve_bytes: int = Field(
        default=256 * MIB,
        ge=0,
        le=INT64_MAX,
        description="New data is refused while the disk has less free space than this.",
    )
    local_hard_limit_bytes: int = Field(
        default=-1,
        ge=-1,
        le=INT64_MAX,
        description="New data is refused while this node's segments take more than this; -1 means no limit but the "
        "disk.",
    )

    log_index_cache_bytes: int = Field(
        default=32 * MIB,
        ge=0,
        le=64 * GIB,
        description="Bytes of sealed local segments' index points in memory; above it those of the least recently read "
        "segments are dropped, and read from disk when they are needed again. 24 bytes per 64 KiB of data.",
    )

    # Retention --------------------------------------------------------------------------------------------------
    log_retention_ms: int = Field(
        default=7 * DAY_MS,
        ge=-1,
        le=INT64_MAX,
        description="Age after which a sealed segment is deleted from every tier; -1 means never.",
    )
    log_retention_bytes: int = Field(
        default=-1,
        ge=-1,
        le=INT64_MAX,
        description="Size per shard, all tiers, above which the oldest sealed segments are deleted; -1 means no limit.",
    )
    log_local_retention_ms: int = Field(
        default=-2,
        ge=-2,
        le=INT64_MAX,
        description="Age after which the local copy of an offloaded segment is freed; -2 means as long as the total "
        "retention, -1 never.",
    )
    log_local_retention_bytes: int = Field(
        default=-2,
        ge=-2,
        le=INT64_MAX,
        description="Local size per shard above which the oldest offloaded copies are freed; -2 means as much as the "
        "total retention, -1 no limit.",
    )
    log_retention_check_interval_ms: int = Field(
        default=5 * MINUTE_MS,
        ge=1,
        le=1 * DAY_MS,
        description="Time between two looks for segments that are due to roll, be freed or be deleted.",
    )

    # Timestamps -------------------------------------------------------------------------------------------------
    log_message_timestamp_type: TimestampType = Field(
        default=TimestampType.CREATE_TIME,
        description="Whether a record keeps its producer's timestamp or gets the time of the append.",
    )
    log_message_timestamp_before_max_ms: int = Field(
        default=INT64_MAX,
        ge=0,
        le=INT64_MAX,
        description="How far a record's timestamp may be in the past.",
    )
    log_message_timestamp_after_max_ms: int = Field(
        default=1 * HOUR_MS,
        ge=0,
        le=INT64_MAX,
        description="How far a record's timestamp may be in the future.",
    )

    # Groups and producers ---------------------------------------------------------------------------------------
    group_min_session_timeout_ms: int = Field(
        default=6 * SECOND_MS,
        ge=1,
        le=INT32_MAX,
        description="Shortest session timeout a group member may ask for.",
    )
    group_max_session_timeout_ms: int = Field(
        default=30 * MINUTE_MS,
        ge=1,
        le=INT32_MAX,
        description="Longest session timeout a group member may ask for.",
    )
    group_initial_rebalance_delay_ms: int = Field(
        default=3 * SECOND_MS,
        ge=0,
        le=INT32_MAX,
        description="Time an empty group waits for more members before its first rebalance.",
    )
    group_consumer_session_timeout_ms: int = Field(
        default=45_000,
        ge=1_000,
        le=INT32_MAX,
        description="A member of a group of the consumer protocol (KIP-848) that is silent for so long is removed.",
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        default=5_000,
        ge=100,
        le=INT32_MAX,
        description="How often members of groups of the consumer protocol are told to send a heartbeat.",
    )
    group_consumer_migration_policy: GroupMigrationPolicy = Field(
        default=GroupMigrationPolicy.BIDIRECTIONAL,
        description="Whether a group with members may change from the classic protocol to the consumer protocol "
        "(`upgrade`), back (`downgrade`), both or neither. One without members always may.",
    )
    group_max_size: int = Field(default=10_000, ge=1, le=INT32_MAX, description="Most members of one consumer group.")
    offsets_retention_minutes: int = Field(
        default=7 * 24 * 60,
        ge=1,
        le=INT32_MAX,
        description="Minutes after which the offsets of a group without members are forgotten.",
    )
    offsets_topic_num_partitions: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="Shards of the internal topic that keeps group offsets; fixed once the topic exists.",
    )
    offsets_topic_replication_factor: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Replicas of the internal topic that keeps group offsets, as far as there are living nodes: it is "
        "made with so many as there are, and gets the rest as nodes come.",
    )
    offset_metadata_max_bytes: int = Field(
        default=4 * KIB,
        ge=0,
        le=1 * MIB,
        description="Longest metadata text a client may commit with an offset.",
    )
    producer_id_expiration_ms: int = Field(
        default=1 * DAY_MS,
        ge=1,
        le=INT64_MAX,
        description="A shard forgets an idempotent producer that has not written for this long.",
    )
    producer_id_max_per_shard: int = Field(
        default=5_000,
        ge=10,
        le=100_000,
        description="Most idempotent producers a shard remembers; above it the one that has not written for longest is "
        "forgotten. Each sealed segment's index block carries all of them, about 40 to 140 bytes each.",
    )

    # Upload to the object store ---------------------------------------------------------------------------------
    remote_storage_enable: bool = Field(
        default=True,
        description="Whether topics move to the object store unless they say otherwise; without --bucket it is false.",
    )
    remote_upload_chunk_bytes: int = Field(
        default=8 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="A shard with this many committed bytes not yet uploaded sends them as a chunk object of its own.",
    )
    remote_upload_bundle_bytes: int = Field(
        default=16 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Largest bundle object, which holds small ranges of many shards.",
    )
    remote_upload_interval_ms: int = Field(
        default=10 * SECOND_MS,
        ge=1,
        le=1 * DAY_MS,
        description="Longest time that a committed record waits before it is uploaded.",
    )
    remote_upload_max_inflight_bytes: int = Field(
        default=32 * MIB,
        ge=1 * KIB,
        le=16 * GIB,
        description="Bytes of all uploads in flight; above it no further upload begins.",
    )
    remote_upload_timeout_ms: int = Field(
        default=30 * SECOND_MS,
        ge=10,
        le=1 * HOUR_MS,
        description="An upload not answered within this time is doubtful: the range is sent again under a new name.",
    )
    remote_delete_delay_ms: int = Field(
        default=60 * SECOND_MS,
        ge=0,
        le=30 * DAY_MS,
        description="Time between the deletion of a segment and the deletion of its files and objects; longer than "
        "the longest read.",
    )
    remote_orphan_grace_ms: int = Field(
        default=1 * HOUR_MS,
        ge=0,
        le=365 * DAY_MS,
        description="Age below which an object that no metadata names is left alone; and for so long what a segment "
        "was made of stays after `stratalog pipeline compact` has merged it.",
    )
    remote_orphan_sweep_interval_ms: int = Field(
        default=1 * HOUR_MS,
        ge=1,
        le=30 * DAY_MS,
        description="Time between two sweeps for objects that no metadata names.",
    )
    remote_bundle_max_age_ms: int = Field(
        default=1 * DAY_MS,
        ge=1,
        le=365 * DAY_MS,
        description="Age at which a bundle with dead parts is rewritten, so that deleted data really goes.",
    )

    # Reading from the object store ------------------------------------------------------------------------------
    remote_read_policy: ReadPolicy = Field(
        default=ReadPolicy.NOT_IN_DISK,
        description="When reads go to the object store: never, when the data is not on disk, when it is not in "
        "memory, or always (tests).",
    )
    remote_read_cache_bytes: int = Field(
        default=48 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Bytes held for cold reads by all shards together, read-ahead included.",
    )
    remote_read_window_min_bytes: int = Field(
        default=1 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Read-ahead window of a shard whose cold read begins.",
    )
    remote_read_window_max_bytes: int = Field(
        default=16 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Widest read-ahead window of one shard.",
    )
    remote_read_bytes_per_second: int = Field(
        default=1 * GIB,
        ge=-1,
        le=INT64_MAX,
        description="Most bytes per second that cold reads take from the object store; -1 means no limit.",
    )
    remote_read_max_concurrency: int = Field(
        default=8,
        ge=1,
        le=256,
        description="Most ranges read from the object store at a time.",
    )
    remote_read_unread_ttl_ms: int = Field(
        default=10 * SECOND_MS,
        ge=1,
        le=1 * HOUR_MS,
        description="Data read ahead and not used within this time is dropped, and the window halves.",
    )
    remote_read_read_ttl_ms: int = Field(
        default=2 * SECOND_MS,
        ge=0,
        le=1 * HOUR_MS,
        description="Data read ahead and used is kept this long for other groups.",
    )

    @field_validator("remote_read_bytes_per_second")
    @classmethod
    def _no_zero_rate(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 would stop every cold read; use remote.read.policy=Disable, or -1 for no limit")
        return value

    @model_validator(mode="after")
    def _related(self) -> Self:
        assert_relations(self, PROCESS_RELATIONS)
        return self
