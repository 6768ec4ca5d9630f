"""The settings of one process: every server-side key, its unit, default, bounds and meaning.

Keys keep Kafka's names where Kafka has one; the attribute is the key with underscores for dots. Sources and their
order are in `settings.load`; how settings must relate to each other is in `settings.relations` and checked here, so
that no ProcessSettings exists that breaks one. Frozen: a change means a new object. Reading a field is an attribute
look-up, fit for the hot path.
"""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from stratalog.machines.table.topics import MAX_SHARDS_PER_TOPIC
from stratalog.model.addresses import is_name, parse_address
from stratalog.model.batch import LARGEST_BATCH_BYTES
from stratalog.model.listeners import (
    INTERNAL,
    Listener,
    advertised_address,
    check_addresses,
    check_advertised,
    check_further,
    check_protocols,
    parse_listeners,
)
from stratalog.settings.choices import (
    FlushPolicy,
    GroupMigrationPolicy,
    LogLevel,
    ReadPolicy,
    RemoteCompression,
    StorageClass,
    TimestampType,
)
from stratalog.settings.data_directories import DataDirectorySettings
from stratalog.settings.relations import PROCESS_RELATIONS, assert_relations
from stratalog.settings.units import DAY_MS, GIB, HOUR_MS, INT32_MAX, INT64_MAX, KIB, MIB, MINUTE_MS, SECOND_MS
from stratalog.settings.wrong_values import key_of


def _host_and_port(value: str) -> str:
    if value:
        parse_address(value)
    return value


def _further(value: str) -> str:
    check_further(parse_listeners(value))
    return value


def _advertised(value: str) -> str:
    check_advertised(parse_listeners(value))
    return value


def _names(value: str) -> str:
    wrong = [entry.strip() for entry in value.split(",") if not is_name(entry.strip().removeprefix("."))]
    if value.strip() and wrong:
        raise ValueError(
            f"expected names without port, protocol or path, such as a.example or .example, not {wrong[0]!r}"
        )
    return value


Address: TypeAlias = Annotated[str, AfterValidator(_host_and_port)]
"""HOST:PORT to listen at; empty: none."""
FurtherListeners: TypeAlias = Annotated[str, AfterValidator(_further)]
"""NAME://HOST:PORT to listen at, with commas; empty: none."""
AdvertisedListeners: TypeAlias = Annotated[str, AfterValidator(_advertised)]
"""NAME://HOST:PORT, or HOST:PORT for the internal listener, that others connect to; empty: none."""
HostNames: TypeAlias = Annotated[str, AfterValidator(_names)]
"""Names, separated by commas; a name that begins with a dot allows all names that end in it."""


class ProcessSettings(DataDirectorySettings):
    """What one `stratalog start` runs with. Build it from users' input with `settings.load`, from code by keyword."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=key_of, populate_by_name=True)

    # Identity and listeners -------------------------------------------------------------------------------------
    node_id: int = Field(
        default=1,
        ge=0,
        le=INT32_MAX,
        description="Id of this node in the cluster; fixed for the life of its data directory.",
    )
    broker_rack: str = Field(
        default="",
        max_length=255,
        description="Rack or zone of this node. Replicas are spread over racks, and consumers that name their rack "
        "are served from it. Empty: none.",
    )
    listeners: FurtherListeners = Field(
        default="",
        description="Further listeners for Kafka clients, besides --listen, which is named internal and is used by "
        "other nodes: NAME://HOST:PORT, separated by commas.",
    )
    advertised_listeners: AdvertisedListeners = Field(
        default="",
        description="Addresses that clients are given to connect to: HOST:PORT for the listener of --listen, "
        "NAME://HOST:PORT for a further listener, separated by commas. A listener that is not named here advertises "
        "the address it listens on.",
    )
    metrics_listen: Address = Field(
        default="127.0.0.1:9644",
        description="HOST:PORT for metrics, health, the UI and the admin API (keep it private unless "
        "auth.token.file is set). Port 0 picks a free port; empty turns it off.",
    )
    metrics_max_series: int = Field(
        default=1_000,
        ge=10,
        le=100_000,
        description="Maximum number of topics, of shards and of groups with their own series on the metrics page. "
        "Those that need attention come first; stratalog_metric_left_out counts the others.",
    )
    meta_listen: Address = Field(
        default="",
        description="HOST:PORT for the HTTP API of the embedded meta service. Port 0 picks a free port; empty keeps "
        "the service inside the process.",
    )
    auth_token_file: str = Field(
        default="",
        max_length=4096,
        description="File with the token that the HTTP ports require (metrics.listen, meta.listen and the --listen "
        "of a meta service), and that this process sends to the others. Empty: no token is needed. The file is read "
        "again when it changes. Any of its lines is accepted; the first one is sent. Probes (/healthz, /readyz) "
        "need no token.",
    )
    auth_role_tokens_file: str = Field(
        default="",
        max_length=4096,
        description="File with further tokens for the HTTP ports: ROLE NAME TOKEN a line, with the role viewer, "
        "operator or admin, and for the token perhaps sha256:HEX of it (docs/security.md). It is read again when it "
        "changes, and needs auth.token.file or http.security.protocol=SSL.",
    )
    auth_metrics_enable: bool = Field(
        default=True,
        description="Whether /metrics also requires the token, if there is one.",
    )
    node_lease_ms: int = Field(
        default=2 * SECOND_MS,
        ge=100,
        le=1 * HOUR_MS,
        description="How long a node without heartbeats counts as alive, if the meta service runs as a separate "
        "process. Nodes send a heartbeat every quarter of this time.",
    )
    log_level: LogLevel = Field(default=LogLevel.INFO, description="Lowest level that is logged.")

    # Limits of requests and connections -------------------------------------------------------------------------
    message_max_bytes: int = Field(
        default=1_048_588,
        ge=128,
        le=1 * GIB,
        description="Largest record batch that is accepted, in bytes as sent.",
    )
    socket_request_max_bytes: int = Field(
        default=100 * MIB,
        ge=1 * KIB,
        le=LARGEST_BATCH_BYTES,
        description="Largest request frame; a larger one closes its connection.",
    )
    queued_max_request_bytes: int = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Bytes of all requests in flight. Above it, connections are not read (one larger request is "
        "still read, alone). The same number of bytes may wait in answers, other than records, that clients do not "
        "read; above it, connections that read nothing are closed.",
    )
    fetch_max_bytes: int = Field(
        default=55 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Maximum bytes in one Fetch response, whatever the client asks for.",
    )
    socket_send_buffer_bytes: int = Field(
        default=512 * KIB,
        ge=-1,
        le=1 * GIB,
        description="Size of the kernel's send buffer for a connection; -1 leaves it to the kernel. The kernel uses "
        "twice this value, at most twice net.core.wmem_max, and no client gets more in one round trip.",
    )
    max_connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of client connections; further ones are closed at once. Connections of other "
        "nodes do not count. Never more than a quarter of the process's open files, less 64 for other nodes.",
    )
    max_connections_per_ip: int = Field(
        default=INT32_MAX,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of client connections from one address.",
    )
    max_connection_creation_rate: int = Field(
        default=INT32_MAX,
        ge=1,
        le=INT32_MAX,
        description="New connections per second on all listeners together; further ones wait until they are taken. "
        "The listener of --listen does not count where there are others.",
    )
    quota_window_num: int = Field(
        default=11,
        ge=1,
        le=3_600,
        description="Windows of time over which the use of quotas is averaged. Those before the present one are what "
        "a client may use up in a burst.",
    )
    quota_window_size_seconds: int = Field(default=1, ge=1, le=3_600, description="Length of each of these windows.")
    controller_quota_window_num: int = Field(
        default=11,
        ge=1,
        le=3_600,
        description="The same for controller_mutation_rate: what this many windows allow may be created at once.",
    )
    controller_quota_window_size_seconds: int = Field(
        default=1, ge=1, le=3_600, description="Length of each of these windows."
    )
    connections_max_idle_ms: int = Field(
        default=10 * MINUTE_MS,
        ge=100,
        le=INT64_MAX,
        description="A connection without a request for this long is closed.",
    )
    connection_read_timeout_ms: int = Field(
        default=30 * SECOND_MS,
        ge=10,
        le=1 * HOUR_MS,
        description="Time in which a frame that has begun must be complete; otherwise its connection is closed.",
    )

    http_max_connections: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Maximum number of connections to the admin port (metrics.listen); a further one takes the place "
        "of the one that has been idle longest. Never more than a sixteenth of the process's open files.",
    )
    http_max_connections_per_ip: int = Field(
        default=64,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of connections to the admin port from one address.",
    )
    meta_max_connections: int = Field(
        default=4_096,
        ge=64,
        le=INT32_MAX,
        description="Maximum number of connections to the port of the meta service (meta.listen); a further one takes "
        "the place of the one that has been idle longest. A node opens up to 34. Never more than a quarter of the "
        "process's open files.",
    )
    meta_max_connections_per_ip: int = Field(
        default=1_024,
        ge=64,
        le=INT32_MAX,
        description="Maximum number of connections to the port of the meta service from one address. Many nodes may "
        "share an address.",
    )
    http_max_idle_ms: int = Field(
        default=2 * MINUTE_MS,
        ge=100,
        le=1 * DAY_MS,
        description="An HTTP connection without a request for this long is closed.",
    )
    http_request_timeout_ms: int = Field(
        default=30 * SECOND_MS,
        ge=10,
        le=1 * HOUR_MS,
        description="Longest pause while an HTTP request's head or body arrives, or its answer is read; then the "
        "connection is closed.",
    )
    http_allowed_hosts: HostNames = Field(
        default="",
        description="Host names, separated by commas, that HTTP requests may use, besides IP addresses, localhost "
        "and the name that the port listens on. A name that begins with a dot allows all names that end in it "
        "(.stratalog.svc.cluster.local). Other names are refused, because a malicious web page may be behind them.",
    )

    # New topics -------------------------------------------------------------------------------------------------
    num_partitions: int = Field(
        default=1,
        ge=1,
        le=MAX_SHARDS_PER_TOPIC,
        description="Shards of a topic that is created without a shard count.",
    )
    default_replication_factor: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Replicas of a topic that is created without a replication factor. Each replica needs its own "
        "node, so it is 1 in a process with an embedded meta service.",
    )
    replica_lag_time_max_ms: int = Field(
        default=10 * SECOND_MS,
        ge=100,
        le=1 * HOUR_MS,
        description="A follower that lags behind its leader for longer than this leaves the ISR. A follower whose "
        "lease has ended is not waited for at all.",
    )
    recovery_patience_ms: int = Field(
        default=5 * SECOND_MS,
        ge=100,
        le=1 * HOUR_MS,
        description="How long the recovery of a segment waits for a replica whose node is alive and makes no progress, "
        "if the meta service runs as a separate process. After that the recovery is decided without it if the "
        "acks policy allows that: for acks=all, one replica that has everything is enough.",
    )
    replica_replace_after_ms: int = Field(
        default=10 * MINUTE_MS,
        ge=100,
        le=30 * DAY_MS,
        description="How long a node must be dead before other nodes copy what it held, for segments that are not "
        "complete in the object store, if the meta service runs as a separate process. The extra copies are deleted "
        "once all other replicas have been alive for this long.",
    )
    meta_snapshot_interval_ms: int = Field(
        default=MINUTE_MS,
        ge=100,
        le=DAY_MS,
        description="How often a meta service with a bucket puts a snapshot of the metadata there, if something has "
        "changed. It does so sooner when a node waits to free copies that no snapshot covers yet.",
    )
    retire_verify_interval_ms: int = Field(
        default=30_000, ge=100, le=DAY_MS, description="Time between the two checks of a node that is being retired."
    )
    replica_catchup_bytes_per_second: int = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=1_024 * GIB,
        description="Maximum bytes per second that this node reads for all copies that are outside the ISR or are "
        "being rebuilt; no acknowledgement waits for these. Copies in the ISR are not limited.",
    )
    read_replica_min_bytes: int = Field(
        default=16 * MIB,
        ge=-1,
        le=INT64_MAX,
        description="A consumer that names its rack is sent to another replica, preferably in its rack, if that "
        "replica has at least this many sealed bytes from the consumer's offset on. -1 turns this off.",
    )
    auto_create_topics_enable: bool = Field(
        default=True,
        description="Create a topic when a client first requests its metadata and allows creation.",
    )
    topic_settings_without_effect_enable: bool = Field(
        default=False,
        description="Accept topic settings of Kafka that have no meaning here, such as segment.index.bytes, and "
        "show them as without effect. Otherwise they are refused.",
    )
    min_insync_replicas: int = Field(
        default=1,
        ge=1,
        le=100,
        description="Number of replicas that must be in sync for a write with acks=all to be accepted.",
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
        description="When an append is acknowledged: once it is in the page cache of the in-sync replicas "
        "(replicated), or after a grouped fdatasync (fsync).",
    )
    flush_interval_ms: int = Field(
        default=30 * SECOND_MS,
        ge=1,
        le=1 * HOUR_MS,
        description="Longest time between an append under the replicated policy and its flush in the background.",
    )
    disk_reserve_bytes: int = Field(
        default=256 * MIB,
        ge=0,
        le=INT64_MAX,
        description="New data is refused while the disk has less free space than this.",
    )
    disk_stall_ms: int = Field(
        default=10 * SECOND_MS,
        ge=500,
        le=1 * HOUR_MS,
        description="A disk on which a write, a flush or a read has not returned for this long, or every one has "
        "failed, or that has had no room for new data, makes no progress: other nodes take over the shards that this "
        "node leads, where another replica is in sync, and new segments go elsewhere. The disk counts again once it "
        "has worked for three times as long.",
    )
    local_hard_limit_bytes: int = Field(
        default=-1,
        ge=-1,
        le=INT64_MAX,
        description="New data is refused while the segments of this node, in all its directories, take more than this; "
        "-1 means that only the disk is the limit.",
    )

    log_index_cache_bytes: int = Field(
        default=32 * MIB,
        ge=0,
        le=64 * GIB,
        description="Memory for the index points of sealed local segments. Above it, the index points of the least "
        "recently read segments are dropped, and read from disk again when needed. They take 24 bytes per 64 KiB of "
        "data.",
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
        description="Size of a shard, over all tiers, above which its oldest sealed segments are deleted; -1 means "
        "no limit.",
    )
    log_local_retention_ms: int = Field(
        default=-2,
        ge=-2,
        le=INT64_MAX,
        description="Age after which the local copy of an offloaded segment is freed; -2 means the same as the "
        "total retention, -1 never.",
    )
    log_local_retention_bytes: int = Field(
        default=-2,
        ge=-2,
        le=INT64_MAX,
        description="Local size of a shard above which its oldest offloaded copies are freed; -2 means the same as "
        "the total retention, -1 no limit.",
    )
    log_retention_check_interval_ms: int = Field(
        default=5 * MINUTE_MS,
        ge=1,
        le=1 * DAY_MS,
        description="Time between two checks for segments that are due to roll, be freed or be deleted.",
    )

    # Timestamps -------------------------------------------------------------------------------------------------
    log_message_timestamp_type: TimestampType = Field(
        default=TimestampType.CREATE_TIME,
        description="Whether a record keeps the timestamp of its producer or gets the time of the append.",
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
        description="Shortest session timeout that a group member may ask for.",
    )
    group_max_session_timeout_ms: int = Field(
        default=30 * MINUTE_MS,
        ge=1,
        le=INT32_MAX,
        description="Longest session timeout that a group member may ask for.",
    )
    group_initial_rebalance_delay_ms: int = Field(
        default=3 * SECOND_MS,
        ge=0,
        le=INT32_MAX,
        description="How long an empty group waits for more members before its first rebalance.",
    )
    group_consumer_session_timeout_ms: int = Field(
        default=45_000,
        ge=1_000,
        le=INT32_MAX,
        description="A member of a consumer-protocol group (KIP-848) that is silent for this long is removed.",
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        default=5_000,
        ge=100,
        le=INT32_MAX,
        description="How often members of consumer-protocol groups must send a heartbeat.",
    )
    group_consumer_migration_policy: GroupMigrationPolicy = Field(
        default=GroupMigrationPolicy.BIDIRECTIONAL,
        description="Whether a group with members may change from the classic protocol to the consumer protocol "
        "(`upgrade`), back (`downgrade`), both ways or neither. A group without members always may.",
    )
    group_max_size: int = Field(
        default=10_000, ge=1, le=INT32_MAX, description="Maximum number of members of one consumer group."
    )
    offsets_retention_minutes: int = Field(
        default=7 * 24 * 60,
        ge=1,
        le=INT32_MAX,
        description="Minutes after which the offsets of a group without members are deleted.",
    )
    offsets_topic_num_partitions: int = Field(
        default=8,
        ge=1,
        le=1_000,
        description="Shards of the internal topic for group offsets; fixed once the topic exists.",
    )
    offsets_topic_replication_factor: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Replicas of the internal topic for group offsets. If fewer nodes are alive, the topic is "
        "created with fewer replicas, and gets the rest as nodes join.",
    )
    offset_metadata_max_bytes: int = Field(
        default=4 * KIB,
        ge=0,
        le=1 * MIB,
        description="Longest metadata text that a client may commit with an offset.",
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
        description="Maximum number of idempotent producers that a shard remembers; above it, the one that has not "
        "written for longest is forgotten. The index block of each sealed segment holds all of them, at about 40 to "
        "140 bytes each.",
    )

    # Upload to the object store ---------------------------------------------------------------------------------
    remote_storage_enable: bool = Field(
        default=True,
        description="Whether topics move to the object store by default; false without --bucket.",
    )
    remote_upload_chunk_bytes: int = Field(
        default=8 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="A shard with this many committed bytes that are not yet uploaded sends them as its own chunk "
        "object.",
    )
    remote_upload_bundle_bytes: int = Field(
        default=16 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Largest bundle object; a bundle holds small ranges of many shards.",
    )
    remote_upload_interval_ms: int = Field(
        default=10 * SECOND_MS,
        ge=1,
        le=1 * DAY_MS,
        description="Longest time that a committed record waits before it is uploaded.",
    )
    direct_commit_interval_ms: int = Field(
        default=250,
        ge=1,
        le=1 * MINUTE_MS,
        description="Longest time that a batch of a Direct topic waits before its upload begins, and its producer with "
        "it. All Direct shards of the node go together, so this sets how many objects are put.",
    )
    direct_commit_bytes: int = Field(
        default=8 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="So much data of all Direct shards of the node together is uploaded at once.",
    )
    direct_max_unacknowledged_bytes: int = Field(
        default=256 * MIB,
        ge=1 * KIB,
        le=64 * GIB,
        description="Above this, while the object store does not take what Direct topics wrote, further batches of "
        "them are refused with an error after which clients try again.",
    )
    remote_upload_max_inflight_bytes: int = Field(
        default=32 * MIB,
        ge=1 * KIB,
        le=16 * GIB,
        description="Bytes of all uploads in flight; above it, no further upload starts.",
    )
    remote_upload_timeout_ms: int = Field(
        default=30 * SECOND_MS,
        ge=10,
        le=1 * HOUR_MS,
        description="The outcome of an upload that is not answered within this time is unknown: the range is sent "
        "again under a new name.",
    )
    remote_delete_delay_ms: int = Field(
        default=60 * SECOND_MS,
        ge=0,
        le=30 * DAY_MS,
        description="Time between the deletion of a segment and the deletion of its files and objects. It must be "
        "longer than the longest read.",
    )
    remote_orphan_grace_ms: int = Field(
        default=1 * HOUR_MS,
        ge=0,
        le=365 * DAY_MS,
        description="An object that no metadata names is left alone until it is this old. The old objects of a "
        "segment stay for the same time after `stratalog pipeline compact` has merged them.",
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
        description="Age at which a bundle with dead parts is rewritten, so that deleted data is really removed.",
    )

    remote_storage_class: StorageClass = Field(
        default=StorageClass.STANDARD,
        description="Storage class in which chunks of data are uploaded: STANDARD (the bucket's default); of S3, "
        "STANDARD_IA, ONEZONE_IA (lost with its zone), INTELLIGENT_TIERING or GLACIER_IR; of Google, NEARLINE, "
        "COLDLINE or ARCHIVE; of Azure, COOL or COLD. Other objects (indexes, manifests, bundles of several shards) "
        "are put in the default class.",
    )
    remote_compression: RemoteCompression = Field(
        default=RemoteCompression.NONE,
        description="Whether chunks of data are compressed on their way to the object store, if clients have not "
        "compressed them: none or zstd. Every node, meta service and job must be able to read packed chunks.",
    )

    # Reading from the object store ------------------------------------------------------------------------------
    remote_read_policy: ReadPolicy = Field(
        default=ReadPolicy.NOT_IN_DISK,
        description="When reads go to the object store: never, if the data is not on disk, if it is not in memory, "
        "or always (for tests). A topic's change to Disable is refused while it has records in the object store alone.",
    )
    remote_read_cache_bytes: int = Field(
        default=48 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="Memory for the cold reads of all shards together, including read-ahead.",
    )
    remote_read_window_min_bytes: int = Field(
        default=1 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Read-ahead window of a shard when a cold read starts.",
    )
    remote_read_window_max_bytes: int = Field(
        default=16 * MIB,
        ge=1 * KIB,
        le=1 * GIB,
        description="Largest read-ahead window of one shard.",
    )
    remote_read_bytes_per_second: int = Field(
        default=1 * GIB,
        ge=-1,
        le=INT64_MAX,
        description="Maximum bytes per second that cold reads take from the object store; -1 means no limit.",
    )
    remote_read_topic_bytes_per_second: int = Field(
        default=-1,
        ge=-1,
        le=INT64_MAX,
        description="Maximum bytes per second that a node answers from the object store for one topic; -1 means no "
        "limit.",
    )
    remote_read_client_bytes_per_second: int = Field(
        default=-1,
        ge=-1,
        le=INT64_MAX,
        description="Maximum bytes per second that a node answers from the object store for one topic and one client "
        "id; -1 means no limit.",
    )
    remote_read_max_concurrency: int = Field(
        default=8,
        ge=1,
        le=256,
        description="Maximum number of ranges that are read from the object store at the same time.",
    )
    remote_read_unread_ttl_ms: int = Field(
        default=10 * SECOND_MS,
        ge=1,
        le=1 * HOUR_MS,
        description="If data that was read ahead is not used within this time, the window is halved. The data stays "
        "until its memory is needed.",
    )

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        check_addresses(self.further_listeners, self.advertised_addresses)
        check_protocols(self.security_protocols, self.further_listeners)
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if self.auth_role_tokens_file and not self.auth_token_file and self.http_security_protocol != "SSL":
            raise ValueError(
                "auth.role.tokens.file needs auth.token.file, or http.security.protocol=SSL: the parts of the cluster "
                "prove with them who they are"
            )
        return self

    @field_validator(
        "remote_read_bytes_per_second", "remote_read_topic_bytes_per_second", "remote_read_client_bytes_per_second"
    )
    @classmethod
    def _no_zero_rate(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 would stop every cold read; use remote.read.policy=Disable, or -1 for no limit")
        return value

    @model_validator(mode="after")
    def _related(self) -> Self:
        assert_relations(self, PROCESS_RELATIONS)
        return self

    @property
    def further_listeners(self) -> tuple[Listener, ...]:
        """Beside the internal one, which is where --listen says."""
        return parse_listeners(self.listeners)

    @property
    def advertised_addresses(self) -> tuple[Listener, ...]:
        """The addresses of listeners that others get, for listeners whose address is not simply where they listen."""
        return parse_listeners(self.advertised_listeners)

    def advertised(self, listening: tuple[str, int]) -> tuple[str, int]:
        """Where others find what listens there for the inside. Port 0 stands for the port there."""
        address = advertised_address(Listener(INTERNAL, *listening), self.advertised_addresses)
        return address.host, address.port
