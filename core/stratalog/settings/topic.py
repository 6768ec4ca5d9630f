"""The settings of one topic: what a topic may override, under Kafka's names, over the defaults of the process.

Frozen. `resolve` is lenient about stored overrides that a newer version wrote (an old key must not make a topic
unreadable); `validate_overrides` is what a create or an alter must pass first, and refuses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stratalog.model.errors import InvalidRequest
from stratalog.model.storage_policy import StoragePolicy
from stratalog.settings.choices import (
    AcksPolicy,
    ArchiveClass,
    CleanupPolicy,
    CompressionType,
    FlushPolicy,
    ReadPolicy,
    RemoteCompression,
    StorageClass,
    TimestampType,
    UncleanSeal,
)
from stratalog.settings.kafka_names import WITHOUT_EFFECT, require_effect
from stratalog.settings.process import ProcessSettings
from stratalog.settings.relations import NO_LIMIT, SAME_AS_TOTAL, TOPIC_RELATIONS, assert_relations
from stratalog.settings.units import DAY_MS, GIB, INT64_MAX, KIB
from stratalog.settings.wrong_values import explain, fields_by_key, key_of, refuse_no_whole_number, unknown_key

PROCESS_DEFAULTS: Final[Mapping[str, str]] = {
    "retention_ms": "log_retention_ms",
    "retention_bytes": "log_retention_bytes",
    "local_retention_ms": "log_local_retention_ms",
    "local_retention_bytes": "log_local_retention_bytes",
    "segment_bytes": "log_segment_bytes",
    "segment_ms": "log_roll_ms",
    "max_message_bytes": "message_max_bytes",
    "min_insync_replicas": "min_insync_replicas",
    "message_timestamp_type": "log_message_timestamp_type",
    "message_timestamp_before_max_ms": "log_message_timestamp_before_max_ms",
    "message_timestamp_after_max_ms": "log_message_timestamp_after_max_ms",
    "remote_storage_enable": "remote_storage_enable",
    "remote_upload_chunk_bytes": "remote_upload_chunk_bytes",
    "remote_upload_interval_ms": "remote_upload_interval_ms",
    "flush_policy": "flush_policy",
    "remote_read_policy": "remote_read_policy",
    "remote_storage_class": "remote_storage_class",
    "remote_compression": "remote_compression",
    "remote_read_topic_bytes_per_second": "remote_read_topic_bytes_per_second",
    "remote_read_client_bytes_per_second": "remote_read_client_bytes_per_second",
    "data_move_after_ms": "data_move_after_ms",
}
"""Topic attribute -> the process attribute that gives its default."""


def _topic_key(attribute: str) -> str:
    return "uncleanSeal" if attribute == "unclean_seal" else key_of(attribute)


def _over_defaults(process: ProcessSettings, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The process's defaults under a topic's overrides, by key.

    A local retention that is only inherited follows a shorter total of the topic instead of contradicting it.
    """
    values: dict[str, Any] = {_topic_key(topic): getattr(process, name) for topic, name in PROCESS_DEFAULTS.items()}
    values |= overrides
    for total in ("retention.ms", "retention.bytes"):
        local = "local." + total
        if total in overrides and local not in overrides:
            with suppress(ValueError):
                limit = int(overrides[total])
                if limit != NO_LIMIT and not 0 <= values[local] <= limit:
                    values[local] = SAME_AS_TOTAL
    return values


class TopicSettings(BaseModel):
    """What holds for one topic. Use `resolve`; every field has a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=_topic_key, populate_by_name=True)

    cleanup_policy: CleanupPolicy = Field(
        default=CleanupPolicy.DELETE,
        description="How old data is removed: delete drops whole segments; compact is not available.",
    )
    retention_ms: int = Field(
        ge=-1,
        le=INT64_MAX,
        description="Age after which a sealed segment is deleted from every tier; -1 means never.",
    )
    retention_bytes: int = Field(
        ge=-1,
        le=INT64_MAX,
        description="Size of a shard, over all tiers, above which its oldest sealed segments are deleted; -1 means "
        "no limit.",
    )
    local_retention_ms: int = Field(
        ge=-2,
        le=INT64_MAX,
        description="Age after which the local copy of an offloaded segment is freed; -2 means the same as "
        "retention.ms, -1 never.",
    )
    local_retention_bytes: int = Field(
        ge=-2,
        le=INT64_MAX,
        description="Local size of a shard above which its oldest offloaded copies are freed; -2 means the same as "
        "retention.bytes, -1 no limit.",
    )
    segment_bytes: int = Field(ge=256, le=64 * GIB, description="A segment that reaches this size rolls.")
    segment_ms: int = Field(ge=1, le=INT64_MAX, description="A segment whose first record is this old rolls.")
    max_message_bytes: int = Field(
        ge=128,
        le=1 * GIB,
        description="Largest record batch that is accepted, in bytes as sent.",
    )
    min_insync_replicas: int = Field(
        ge=1,
        le=100,
        description="Number of replicas that must be in sync for a write with acks=all to be accepted.",
    )
    acks_policy: AcksPolicy = Field(
        default=AcksPolicy.ISR,
        description="What a write with acks=all waits for, and what readers see: data that all in-sync replicas "
        "have (isr), or data that a majority of the replicas has, in sync or not (quorum; min.insync.replicas is "
        "not used then). It cannot be changed after the topic is created.",
    )
    message_timestamp_type: TimestampType = Field(
        description="Whether a record keeps the timestamp of its producer or gets the time of the append.",
    )
    message_timestamp_before_max_ms: int = Field(
        ge=0,
        le=INT64_MAX,
        description="How far a record's timestamp may be in the past.",
    )
    message_timestamp_after_max_ms: int = Field(
        ge=0,
        le=INT64_MAX,
        description="How far a record's timestamp may be in the future.",
    )
    compression_type: CompressionType = Field(
        default=CompressionType.PRODUCER,
        description="Batches stay as the producer compressed them; producer is the only value.",
    )
    storage_policy: StoragePolicy = Field(
        default=StoragePolicy.REPLICATED,
        description="What an acknowledgement promises: the in-sync replicas have the batch (Replicated), or the object "
        "store has it, and no node replicates it (Direct). The next segments open so; a change rolls those that are "
        "written.",
    )
    remote_storage_enable: bool = Field(
        description="Whether sealed and committed data of this topic moves to the object store.",
    )
    remote_upload_chunk_bytes: int = Field(
        ge=1 * KIB,
        le=1 * GIB,
        description="A shard of this topic with this many committed bytes that are not yet uploaded sends them as its "
        "own chunk object; larger ones where more comes than one upload after the other can take. At most the node's "
        "remote.upload.bundle.bytes.",
    )
    remote_upload_interval_ms: int = Field(
        ge=1,
        le=1 * DAY_MS,
        description="Longest time that a committed record of this topic waits before it is uploaded. It may go earlier "
        "with data whose interval is about as long or longer. Direct topics have direct.commit.interval.ms instead.",
    )
    flush_policy: FlushPolicy = Field(
        description="When an append is acknowledged: once it is in the page cache of the in-sync replicas "
        "(replicated), or after a grouped fdatasync (fsync).",
    )
    remote_read_policy: ReadPolicy = Field(
        description="When reads go to the object store: never, if the data is not on disk, if it is not in memory, "
        "or always (for tests).",
    )
    remote_storage_class: StorageClass = Field(
        description="Storage class in which chunks of data are uploaded from now on: STANDARD (the bucket's "
        "default); of S3, STANDARD_IA, ONEZONE_IA (lost with its zone), INTELLIGENT_TIERING or GLACIER_IR; of Google, "
        "NEARLINE, COLDLINE or ARCHIVE; of Azure, COOL or COLD. What is uploaded already stays where it is.",
    )
    remote_compression: RemoteCompression = Field(
        description="Whether chunks of data are compressed on their way to the object store, if clients have not "
        "compressed them: none or zstd. What is uploaded already stays as it is.",
    )
    archive_after_ms: int = Field(
        default=-1,
        ge=-1,
        le=INT64_MAX,
        description="Age after which `stratalog pipeline compact` moves the chunks of a complete segment to "
        "archive.storage.class; -1 means never. They must be restored before they are read.",
    )
    archive_storage_class: ArchiveClass = Field(
        default=ArchiveClass.GLACIER,
        description="Storage class of S3 for archived chunks: GLACIER or DEEP_ARCHIVE.",
    )
    remote_read_topic_bytes_per_second: int = Field(
        ge=-1,
        le=INT64_MAX,
        description="Maximum bytes per second that a node answers from the object store for this topic; -1 means no "
        "limit.",
    )
    remote_read_client_bytes_per_second: int = Field(
        ge=-1,
        le=INT64_MAX,
        description="Maximum bytes per second that a node answers from the object store for this topic and one client "
        "id; -1 means no limit.",
    )
    data_move_after_ms: int = Field(
        ge=-1,
        le=INT64_MAX,
        description="On nodes with data.dirs, a sealed segment moves there this long after its seal; -1: only while "
        "the node's data.move.free.bytes asks for it.",
    )
    index_keys: bool = Field(
        default=False,
        description="Whether completed segments in the object store get an index of record keys, with which "
        "`stratalog find` and Spark look up a key in two range reads.",
    )
    unclean_seal: UncleanSeal = Field(
        default=UncleanSeal.DENY,
        description="Whether a shard may give up offsets that are stored neither on a disk nor in the object store. "
        "With deny, the shard stops and names them; with allow, a batch without records takes their place, and the "
        "log continues. In a file that is damaged, that is all from the damaged batch on that the object store does "
        "not have; its bytes are kept beside the file.",
    )

    @field_validator("cleanup_policy", mode="before")
    @classmethod
    def _no_compaction(cls, value: Any) -> Any:
        if "compact" in str(value):
            raise ValueError("compaction by key is not available: sealed segments are immutable; use delete")
        return value

    @field_validator("remote_read_topic_bytes_per_second", "remote_read_client_bytes_per_second")
    @classmethod
    def _no_zero_rate(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 would stop every cold read; use remote.read.policy=Disable, or -1 for no limit")
        return value

    @model_validator(mode="after")
    def _related(self) -> Self:
        assert_relations(self, TOPIC_RELATIONS)
        if self.storage_policy is StoragePolicy.DIRECT:
            if not self.remote_storage_enable:
                raise ValueError(
                    "storage.policy=Direct acknowledges what the object store has, and remote.storage.enable=false "
                    "keeps the topic out of it: set remote.storage.enable=true"
                )
            if self.acks_policy is AcksPolicy.QUORUM:
                raise ValueError(
                    "storage.policy=Direct has no replicas of which a majority could acknowledge: leave out acks.policy"
                )
        return self

    # What the -2 of the local settings stands for ----------------------------------------------------------------
    @property
    def effective_local_retention_ms(self) -> int:
        """Local retention with "same as total" put in; -1 means never."""
        return self.retention_ms if self.local_retention_ms == SAME_AS_TOTAL else self.local_retention_ms

    @property
    def effective_local_retention_bytes(self) -> int:
        """Local retention with "same as total" put in; -1 means no limit."""
        return self.retention_bytes if self.local_retention_bytes == SAME_AS_TOTAL else self.local_retention_bytes

    # Building ----------------------------------------------------------------------------------------------------
    @classmethod
    def resolve(cls, process: ProcessSettings, overrides: Mapping[str, str]) -> TopicSettings:
        """The topic's settings: the process's defaults under the topic's overrides.

        A stored override that this version does not know or cannot read is passed over, so that the topic stays
        readable after a downgrade or a change of a process default; `validate_overrides` is what refuses.
        """
        fields = fields_by_key(cls)
        wanted = {key: value for key, value in overrides.items() if key in fields}
        try:
            return cls.model_validate(_over_defaults(process, wanted))
        except ValidationError:
            return cls._resolve_what_fits(process, wanted)

    @classmethod
    def _resolve_what_fits(cls, process: ProcessSettings, wanted: Mapping[str, str]) -> TopicSettings:
        """Take overrides one by one and keep those that leave a valid whole. Only for stored ones gone stale."""
        kept: dict[str, str] = {}
        settled = cls.model_validate(_over_defaults(process, kept))
        for key, value in wanted.items():
            try:
                settled = cls.model_validate(_over_defaults(process, kept | {key: value}))
            except ValidationError:
                continue
            kept[key] = value
        return settled

    @classmethod
    def validate_overrides(
        cls,
        overrides: Mapping[str, str],
        process: ProcessSettings | None = None,
        present: Mapping[str, str] | None = None,
    ) -> None:
        """`present` is what was kept before. Raises InvalidRequest that names each refused key, its value, what is
        allowed, and the nearest names of an unknown one. Relations (local within total) are judged over the defaults
        of `process`, or the built-in ones."""
        fields = fields_by_key(cls)
        for key in overrides:
            if key not in fields and key not in WITHOUT_EFFECT:
                raise unknown_key(key, fields, "topic")
        defaults = process or ProcessSettings()
        if not defaults.topic_settings_without_effect_enable:
            require_effect(overrides, present)
        overrides = {key: value for key, value in overrides.items() if key in fields}
        try:
            cls.model_validate(_over_defaults(defaults, overrides))
        except ValidationError as error:
            raise explain(error, cls, overrides, "topic") from None
        for key, value in overrides.items():
            refuse_no_whole_number(key, value, fields[key][1], "topic")
        largest = defaults.socket_request_max_bytes
        if int(overrides.get("max.message.bytes", 0)) >= largest:
            raise InvalidRequest(
                f"topic setting max.message.bytes={overrides['max.message.bytes']} is refused: it must be below the "
                f"process's socket.request.max.bytes={largest}, or no request could carry such a batch"
            )
