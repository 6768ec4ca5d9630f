"""The words a setting may be set to, for settings that choose one of a few.

Values are written as users write them: Kafka's words where the setting is Kafka's.
"""

from __future__ import annotations

from enum import StrEnum


class TimestampType(StrEnum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class ClientAuth(StrEnum):
    """Whether a listener with TLS asks clients for a certificate."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class PortProtocol(StrEnum):
    """What a port speaks whose callers prove themselves by certificates or tokens."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"


class FlushPolicy(StrEnum):
    """When an append may be acknowledged (docs/design.md section 10)."""

    REPLICATED = "replicated"
    FSYNC = "fsync"


class AcksPolicy(StrEnum):
    """What acks=all waits for (docs/replication.md section 3)."""

    ISR = "isr"
    QUORUM = "quorum"


class ReadPolicy(StrEnum):
    """When a read may go to the object store (docs/design.md section 6)."""

    DISABLE = "Disable"
    NOT_IN_DISK = "NotInDisk"
    NOT_IN_MEMORY = "NotInMemory"
    FORCE = "Force"


class StorageClass(StrEnum):
    """Storage classes whose objects are read at once: each store has some of them, and refuses the others. A class that
    must be restored first is not among them."""

    STANDARD = "STANDARD"
    """The bucket's default: nothing is asked for."""
    STANDARD_IA = "STANDARD_IA"
    ONEZONE_IA = "ONEZONE_IA"
    INTELLIGENT_TIERING = "INTELLIGENT_TIERING"
    GLACIER_IR = "GLACIER_IR"
    NEARLINE = "NEARLINE"
    """Of Google Cloud Storage, as the next two."""
    COLDLINE = "COLDLINE"
    ARCHIVE = "ARCHIVE"
    COOL = "COOL"
    """Of Azure Blob Storage, as the next one."""
    COLD = "COLD"

    @property
    def asked_for(self) -> str:
        """Of the object store; empty for its default."""
        return "" if self is StorageClass.STANDARD else self.value


class ArchiveClass(StrEnum):
    """Storage classes of S3 whose objects must be restored before they are read."""

    GLACIER = "GLACIER"
    DEEP_ARCHIVE = "DEEP_ARCHIVE"


class RemoteCompression(StrEnum):
    """What happens to chunks on their way to the object store (docs/formats.md section 17)."""

    NONE = "none"
    ZSTD = "zstd"


class UncleanSeal(StrEnum):
    """What happens to a shard whose in-sync replicas are all gone (rule 8)."""

    DENY = "deny"
    ALLOW = "allow"


class CleanupPolicy(StrEnum):
    DELETE = "delete"


class CompressionType(StrEnum):
    """Batches are kept as the producer compressed them: nothing on the hot path looks inside a batch."""

    PRODUCER = "producer"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class GroupMigrationPolicy(StrEnum):
    """Whether a consumer group changes its protocol while it has members."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        return self in (GroupMigrationPolicy.UPGRADE, GroupMigrationPolicy.BIDIRECTIONAL)

    @property
    def may_downgrade(self) -> bool:
        return self in (GroupMigrationPolicy.DOWNGRADE, GroupMigrationPolicy.BIDIRECTIONAL)
