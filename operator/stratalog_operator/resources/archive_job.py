"""ArchiveJob: work on the cold data of a cluster that runs on a schedule, or once when it is asked for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from stratalog_operator.resources.cluster import Image
from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.requests import since_1970
from stratalog_operator.resources.schema import (
    AS_SET,
    Count,
    Part,
    Quantity,
    Resources,
    SecretName,
    ShortName,
    Time,
    Toleration,
    checked,
    immutable,
    rule,
    rules,
)

_NO_SECRET: Final = (
    "!self.matches('(?i)[?&][^=&]*(access_key|account_key|customer_key|secret|token|password|sas_|credential)') && "
    "!self.matches('^[a-z0-9]+://[^/?]*@')",
    "the URL must have no credentials: everyone who may read this object sees them; use credentialsSecretRef",
)


def _no_secret(field: str) -> dict[str, str]:
    expression, words = _NO_SECRET
    return rule(expression, f"{field}: {words}")


class ArchiveTask(Part):
    """Writes sealed segments to tables, each record once."""

    model_config = checked(
        rule(
            "!(self.kind in ['avro', 'protobuf']) || has(self.schemaConfigMapRef)",
            "archive: kinds avro and protobuf need schemaConfigMapRef: without a schema no record can be read",
        ),
        rule(
            "has(self.message) == (self.kind == 'protobuf')",
            "archive: message names the Protobuf message, and only kind protobuf has it",
        ),
        rule("!self.confluent || self.kind != 'raw'", "archive: confluent is for kinds whose values are read, not raw"),
        rule("!has(self.schemaKey) || has(self.schemaConfigMapRef)", "archive: schemaKey needs schemaConfigMapRef"),
    )
    to: str = Field(
        min_length=1,
        max_length=512,
        pattern="^[a-z0-9]+://[^ ]+$",
        description="URL of the object store for the tables, such as s3://BUCKET/PREFIX?region=eu-central-1.",
        json_schema_extra=rules(_no_secret("archive.to")),
    )
    kind: Literal["json", "raw", "avro", "protobuf"] = Field(
        default="json", description="What the values of the records are."
    )
    by: Literal["date", "hour", "month"] = Field(default="date", description="Unit of time of the partitions.")
    format: Literal["parquet", "delta", "iceberg"] = Field(
        default="parquet", description="Plain Parquet files, or a Delta or Iceberg table."
    )
    on_gap: Literal["fail", "report"] = Field(
        default="fail", description="What to do about records that were deleted before they were archived."
    )
    schema_config_map_ref: SecretName | None = Field(
        default=None, description="ConfigMap with the schema. Default: inferred from JSON records."
    )
    schema_key: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        pattern="^[-._a-zA-Z0-9]+$",
        description="Key of the schema in the ConfigMap. Default: all its keys are Avro schemas ID.avsc.",
    )
    message: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        pattern="^[A-Za-z_][A-Za-z0-9_.]*$",
        description="For kind protobuf: full name of the message.",
    )
    confluent: bool = Field(
        default=False, description="Whether each value begins with Confluent's zero byte and a schema id."
    )


class CompactTask(Part):
    """Merges small objects of complete segments into large ones; archives old ones (archive.after.ms)."""

    object_bytes: int = Field(
        default=67108864, ge=65536, le=536870912, description="Most bytes of batches in one object."
    )
    pack: bool = Field(
        default=False,
        description="Whether merged chunks are compressed; every node and reader must know packed chunks.",
    )


class ExportTask(Part):
    """Writes committed records to files or to another Kafka cluster."""

    model_config = checked(
        rule(
            "(self.format == 'kafka') != self.to.contains('://')",
            "export: with format kafka, to is HOST:PORT[,HOST:PORT]; otherwise the URL of an object store",
        ),
        rule(
            "self.format == 'kafka' || !has(self.clientConfigSecretRef)",
            "export: clientConfigSecretRef is how to log in to a Kafka: only format kafka has it",
        ),
    )
    to: str = Field(
        min_length=1,
        max_length=512,
        pattern="^[^ -][^ ]*$",
        description="URL of an object store, or bootstrap servers of a Kafka cluster.",
        json_schema_extra=rules(_no_secret("export.to")),
    )
    format: Literal["jsonl", "parquet", "kafka"] = Field(
        default="jsonl", description="Files of this kind, or records in a Kafka cluster."
    )
    client_config_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret with client.properties, the settings by which Kafka clients log in, and the files that it "
        "names under /etc/stratalog/client. Default: no login.",
    )


class Spark(Part):
    """Where the work is done."""

    cores: int = Field(
        default=2, ge=0, le=256, description="Spark threads in the pod; 0: without Spark and Java, one piece at a time."
    )
    master: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        pattern="^(spark|k8s)://[^ ]+$",
        description="Spark cluster that does the work; the pod is its driver. Default: Spark in the pod.",
    )


class ArchiveJobSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule(
            "(self.action == 'Archive') == has(self.archive)",
            "action Archive needs archive, which says where the tables are; no other action has it",
        ),
        rule(
            "(self.action == 'Export') == has(self.export)",
            "action Export needs export, which says where the records go; no other action has it",
        ),
        rule("self.action == 'Compact' || !has(self.compact)", "compact: only action Compact has it"),
        rule(
            "self.action != 'Archive' || size(self.topics) > 0",
            "topics: action Archive needs the topics by name: each becomes a table",
        ),
        rule("has(self.schedule) || !has(self.timeZone)", "timeZone is that of schedule, which is missing"),
    )
    cluster_ref: ShortName = Field(
        description="StorageCluster of the data; fixed.",
        json_schema_extra=immutable("clusterRef", "create another ArchiveJob"),
    )
    action: Literal["Archive", "Compact", "Verify", "Export"] = Field(
        description="Archive: sealed segments become tables. Compact: small objects are merged, and packed. Verify: "
        "every byte in the object store is checked. Export: records go to files or to a Kafka cluster."
    )
    topics: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=249, pattern="^[A-Za-z0-9._][A-Za-z0-9._-]*$")], ...],
        Field(max_length=100, json_schema_extra=AS_SET),
    ] = Field(default=(), description="Names of the topics. Default, but for Archive: all.")
    archive: ArchiveTask | None = Field(default=None, description="Of action Archive.")
    compact: CompactTask | None = Field(default=None, description="Of action Compact. Default: its defaults.")
    export: ExportTask | None = Field(default=None, description="Of action Export.")
    schedule: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        pattern=r"^(@[a-z]+|[^ @=]+( +[^ @=]+){4})$",
        description="When it runs, in cron's five fields, such as '30 2 * * *', or @daily. Default: only when it is "
        "asked for.",
    )
    time_zone: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z][A-Za-z0-9_+/-]*$",
        description="Time zone of schedule, such as Europe/Berlin. Default: UTC.",
    )
    run_requested_at: Time | None = Field(
        default=None,
        description="Runs once, at this time, if it is newer than the last request and than this object.",
        json_schema_extra=since_1970("runRequestedAt"),
    )
    suspend: bool = Field(default=False, description="Whether runs of the schedule are left out.")
    concurrency_policy: Literal["Forbid", "Allow", "Replace"] = Field(
        default="Forbid",
        description="What happens when a run is due while another is under way: it is left out, runs beside it, or "
        "takes its place.",
    )
    deadline_seconds: int = Field(
        default=86400, ge=60, le=2592000, description="Time after which a run is ended, with its retries."
    )
    retries: int = Field(
        default=1, ge=0, le=10, description="How often a run is repeated that was killed, or whose store was away."
    )
    successful_runs_kept: int = Field(default=1, ge=1, le=20, description="Jobs of the schedule that succeeded.")
    failed_runs_kept: int = Field(default=1, ge=1, le=20, description="Jobs of the schedule that failed.")
    image: Image | None = Field(
        default=None,
        description="Image with the pipeline and Java (docs/pipeline.md, section 9). Default: that of the cluster, "
        "with -pipeline at the end of its repository.",
    )
    resources: Resources = Field(default=Resources(), description="Resources of the pod.")
    scratch_size: Quantity = Field(default="10Gi", description="Most room for temporary files of the pod.")
    spark: Spark = Field(default=Spark(), description="Where the work is done.")
    credentials_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret with credentials for the object store of the cluster and for that of the result, with the "
        "keys of coldTier.credentialsSecretRef. Default: those of the cluster.",
    )
    token_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret with the token for the meta service, under the key token; only Compact needs one. "
        "Default: that of the cluster.",
    )
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = Field(
        default={}, description="Labels of the machines on which it runs."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = Field(
        default=(), description="Taints of machines that are tolerated."
    )


class RunStatus(Part):
    """A run that has ended."""

    job: str = Field(default="", max_length=63, description="Its Job.")
    uid: str = Field(default="", max_length=64, description="UID of the Job.")
    started_at: Time | None = Field(default=None, description="When it started.")
    finished_at: Time | None = Field(default=None, description="When it ended.")
    result: Literal["Succeeded", "Failed"] = Field(default="Failed", description="Whether it did all its work.")
    exit_code: Count | None = Field(
        default=None, description="Of the command (docs/pipeline.md, section 9). Absent: the pod left no report."
    )
    segments: Count = Field(default=0, description="Segments archived, merged or checked, or pieces exported.")
    rows: Count = Field(default=0, description="Records that were written.")
    bytes: Count = Field(default=0, description="Bytes that were read (Archive, Verify) or written (Compact, Export).")
    findings: Count = Field(
        default=0, description="Dead letters, damage, segments that were not merged, batches that were not exported."
    )
    message: str = Field(default="", max_length=1100, description="Why it failed.")


class RunRequest(Part):
    """The newest request to run at once."""

    requested_at: Time = Field(description="The request: spec.runRequestedAt as it was then.")
    job: str = Field(default="", max_length=63, description="Its Job.")
    done_at: Time | None = Field(default=None, description="When its run ended.")
    ignored: bool = Field(
        default=False, description="Whether it is older than this object, so that nothing was done about it."
    )


class ArchiveJobStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    active_runs: Count = Field(default=0, description="Runs that are under way.")
    next_run_at: Time | None = Field(default=None, description="When the schedule is due next.")
    last_run: RunStatus | None = Field(default=None, description="The newest run that has ended.")
    last_success_at: Time | None = Field(default=None, description="When a run last succeeded.")
    last_commit_at: Time | None = Field(
        default=None, description="When a run last changed anything: a table, the object store or the target."
    )
    lag_records: Count | None = Field(
        default=None, description="Committed records that the tables did not have at the end of the last archive."
    )
    failures_in_a_row: Count = Field(default=0, description="Runs that failed since the last one that succeeded.")
    request: RunRequest | None = Field(default=None, description="The newest request to run at once.")
