"""StorageCluster: what all nodes of a cluster share, and the rules by which they come, go and restart."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.schema import (
    AS_SET,
    Count,
    Name,
    Part,
    Quantity,
    Resources,
    SecretName,
    Time,
    checked,
    immutable,
    keyed_by,
    rule,
    rules,
)

OWN_SETTINGS: Final = (
    "node.id",
    "broker.rack",
    "advertised.listeners",
    "listeners",
    "auth.token.file",
    "metrics.listen",
    "meta.listen",
    "http.allowed.hosts",
    "default.replication.factor",
    "min.insync.replicas",
    "log.segment.bytes",
    "log.roll.ms",
    "retire.verify.interval.ms",
)
"""Settings that the operator itself gives: they have fields of their own, or follow from what it makes."""
_OWN: Final = ", ".join(f"'{key}'" for key in OWN_SETTINGS)


class Image(Part):
    """Of all parts: they come from one image."""

    model_config = checked(
        rule("!(has(self.tag) && has(self.digest))", "image: give tag or digest, not both: a digest names one image")
    )
    repository: str = Field(default="stratalog", min_length=1, max_length=255, description="Without tag and digest.")
    tag: str | None = Field(default=None, max_length=128, description="Of the image; neither tag nor digest: latest.")
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$", max_length=71)] | None = Field(
        default=None, description="Of the image, sha256:…; it stays the same whatever happens to a tag."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the image is pulled."
    )
    pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=8, json_schema_extra=AS_SET)] = Field(
        default=(), description="Secrets by which the image is pulled."
    )

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag or 'latest'}"


class Etcd(Part):
    """Members made by the operator: a fixed number, never resized."""

    replicas: int = Field(
        default=3,
        ge=1,
        le=7,
        description="Members; an odd number, fixed once they exist.",
        json_schema_extra=rules(
            rule("self % 2 == 1", "etcd.replicas must be odd: an even number bears no more losses than one less"),
            rule(
                "self == oldSelf", "etcd.replicas cannot be changed: use etcd of your own (meta.external) to resize it"
            ),
        ),
    )
    image: str | None = Field(
        default=None,
        max_length=512,
        description="Image with an etcd program; none: the image of the cluster, which has it.",
    )
    storage: Quantity = Field(default="2Gi", description="Size of each member's volume.")
    storage_class_name: str | None = Field(
        default=None, max_length=253, description="Class of the members' volumes; none: the default class."
    )
    resources: Resources = Field(default=Resources(), description="Of each member.")


class ExternalEtcd(Part):
    """An etcd that somebody else runs: production's way."""

    model_config = checked(
        rule(
            "!has(self.clientTlsSecretRef) || has(self.caSecretRef)",
            "external: clientTlsSecretRef needs caSecretRef: without it etcd is not reached by TLS",
        )
    )

    endpoints: Annotated[
        tuple[Annotated[str, Field(min_length=3, max_length=260, pattern="^[^/:@?#]+:[0-9]+$")], ...],
        Field(min_length=1, max_length=16, json_schema_extra=AS_SET),
    ] = Field(description="HOST:PORT of each member.")
    prefix: str = Field(
        default="",
        max_length=128,
        pattern="^[A-Za-z0-9._/-]*$",
        description="What all keys of this cluster begin with, where several share an etcd; fixed.",
        json_schema_extra=immutable("external.prefix", "the metadata are there; make another cluster"),
    )
    credentials_secret_ref: SecretName | None = Field(
        default=None, description="Secret with username and password, where etcd has users."
    )
    ca_secret_ref: SecretName | None = Field(
        default=None, description="Secret with ca.crt, by which etcd proves itself; none: it is reached without TLS."
    )
    client_tls_secret_ref: SecretName | None = Field(
        default=None, description="Secret with tls.crt and tls.key, where etcd asks who connects."
    )


class Meta(Part):
    """The meta service: who keeps what is true about topics, segments and nodes."""

    model_config = checked(
        rule("has(self.etcd) != has(self.external)", "meta: give exactly one of etcd and external"),
        rule(
            "has(self.etcd) == has(oldSelf.etcd)",
            "meta: etcd and external cannot replace each other: the metadata are in the one that was given first",
        ),
    )
    replicas: int = Field(default=3, ge=1, le=5, description="Instances, of which one leads at a time.")
    etcd: Etcd | None = Field(default=None, description="Members of an etcd that the operator makes.")
    external: ExternalEtcd | None = Field(default=None, description="An etcd that somebody else runs.")
    resources: Resources = Field(default=Resources(), description="Of each instance.")
    token_secret_ref: SecretName | None = Field(
        default=None, description="Secret whose key token opens the meta and admin ports; none: one is made."
    )


class ColdTier(Part):
    """The object store to which sealed data move."""

    bucket: str = Field(
        min_length=3,
        max_length=63,
        pattern="^[a-z0-9][a-z0-9.-]*$",
        description="Of an S3 store; fixed.",
        json_schema_extra=immutable("coldTier.bucket", "cold data are there; make another cluster"),
    )
    prefix: str = Field(
        default="",
        max_length=256,
        pattern="^[A-Za-z0-9._/-]*$",
        description="The prefix of all objects of this cluster; fixed.",
        json_schema_extra=immutable("coldTier.prefix", "cold data are there; make another cluster"),
    )
    endpoint: str = Field(
        default="", max_length=512, pattern="^(https?://[^?#@ ]+)?$", description="URL of the store; empty: Amazon's."
    )
    region: str = Field(default="us-east-1", max_length=64, pattern="^[a-z0-9-]+$", description="Of the bucket.")
    virtual_hosted_style: bool = Field(
        default=False, description="The bucket stands in the host name, not in the path."
    )
    credentials_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret with accessKeyId, secretAccessKey and, if there is one, sessionToken; none: the store "
        "asks for none.",
    )


class Defaults(Part):
    """Of topics that do not say otherwise."""

    model_config = checked(
        rule(
            "self.minInsyncReplicas <= self.replicationFactor",
            "defaults: minInsyncReplicas must not exceed replicationFactor, or no write with acks=all is ever taken",
        )
    )
    replication_factor: int = Field(default=3, ge=1, le=100, description="Replicas of each segment.")
    min_insync_replicas: int = Field(
        default=2, ge=1, le=100, description="Replicas that must be in sync for acks=all to be taken."
    )
    segment_bytes: int | None = Field(default=None, ge=256, le=68719476736, description="A segment of this size rolls.")
    segment_max_age_seconds: int | None = Field(default=None, ge=1, description="A segment of this age rolls.")


class Listener(Part):
    """A door for Kafka clients."""

    model_config = checked(
        rule(
            "(self.type == 'nodeport') == has(self.firstNodePort)",
            "listener: firstNodePort belongs to type nodeport, and to no other",
        )
    )
    name: Name = Field(description="Of the listener; each once.")
    port: int = Field(ge=1024, le=65535, description="Of each pod.")
    type: Literal["internal", "nodeport"] = Field(
        default="internal",
        description="Who comes in: pods of this Kubernetes, or clients outside by a port of its machines.",
    )
    first_node_port: int | None = Field(
        default=None,
        ge=30000,
        le=32766,
        description="Port of the bootstrap Service on every machine; storage node N has this port + 1 + N.",
    )
    advertised_host: str | None = Field(
        default=None,
        max_length=253,
        pattern="^[A-Za-z0-9:]([A-Za-z0-9.:-]*[A-Za-z0-9:])?$",
        description="Host that clients outside are told, for all nodes; none: the address of the machine of each pod.",
    )


class ScaleIn(Part):
    """How nodes leave."""

    mode: Literal["Offload", "RemountVolume"] = Field(
        default="Offload",
        description="Offload: what a leaving node held is served from the object store or from other copies. "
        "RemountVolume: its volume stays, and is read where it is.",
    )
    stall_after_seconds: int = Field(
        default=1800, ge=10, le=604800, description="Without progress for so long a retirement is said to be stalled."
    )
    verify_interval_seconds: int = Field(
        default=30, ge=1, le=86400, description="How far apart the two looks are whether all is kept elsewhere."
    )


class RollingUpdate(Part):
    """How pods restart: one at a time, always."""

    readiness_timeout_seconds: int = Field(
        default=600, ge=10, le=86400, description="A pod that is not back after so long stops the roll."
    )


class StorageRetention(Part):
    """What becomes of volume claims."""

    when_scaled: Literal["Delete", "Retain"] = Field(
        default="Delete", description="Of a node that has left, once nothing needs what is on it."
    )
    when_deleted: Literal["Delete", "Retain"] = Field(default="Retain", description="Of a cluster that is deleted.")


class DisruptionBudget(Part):
    """Of storage nodes."""

    enabled: bool = Field(default=True, description="Whether drains wait while one is away.")


_LISTENERS: Final = (Listener(name="internal", port=9092),)


class StorageClusterSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule("!has(oldSelf.coldTier) || has(self.coldTier)", "coldTier cannot be taken away: cold data are there"),
    )
    image: Image = Field(default=Image(), description="Of all parts.")
    paused: bool = Field(default=False, description="Nothing is applied while it is true; the status goes on.")
    cluster_domain: str = Field(
        default="cluster.local", max_length=253, pattern="^[a-z0-9.-]+$", description="DNS domain of this Kubernetes."
    )
    meta: Meta = Field(description="The meta service and its store.")
    cold_tier: ColdTier | None = Field(default=None, description="The object store of sealed data; none: disks alone.")
    defaults: Defaults = Field(default=Defaults(), description="Of topics that do not say otherwise.")
    listeners: Annotated[
        tuple[Listener, ...],
        Field(
            min_length=1,
            max_length=4,
            json_schema_extra={
                **keyed_by("name"),
                **rules(
                    rule(
                        "self.exists_one(l, l.type == 'internal')",
                        "listeners: exactly one must be of type internal: by it the nodes reach each other",
                    ),
                    rule(
                        "self.all(l, self.exists_one(m, m.port == l.port))",
                        "listeners: each must have a port of its own",
                    ),
                    rule(
                        "self.all(l, l.name != 'internal' || l.type == 'internal')",
                        "listeners: internal is the name of the one by which the nodes reach each other",
                    ),
                    rule(
                        "self.all(l, !(l.port in [9100, 9644]))",
                        "listeners: ports 9100 and 9644 are the meta service's and the admin port",
                    ),
                ),
            },
        ),
    ] = Field(default=_LISTENERS, description="Doors for Kafka clients.")
    config: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=100,
            json_schema_extra=rules(
                rule(
                    f"self.all(key, !(key in [{_OWN}]))",
                    f"config: these settings are the operator's own: {', '.join(OWN_SETTINGS)}",
                )
            ),
        ),
    ] = Field(default={}, description="Settings of the processes by their keys (docs/configure.md).")
    scale_in: ScaleIn = Field(default=ScaleIn(), description="How nodes leave.")
    rolling_update: RollingUpdate = Field(default=RollingUpdate(), description="How pods restart.")
    storage_retention: StorageRetention = Field(
        default=StorageRetention(), description="What becomes of volume claims."
    )
    pod_disruption_budget: DisruptionBudget = Field(default=DisruptionBudget(), description="Of storage nodes.")


class NodeCounts(Part):
    """Of storage nodes, in all pools."""

    desired: Count = Field(default=0, description="That the pools ask for.")
    ready: Count = Field(default=0, description="Whose pods serve.")
    retiring: Count = Field(default=0, description="That are leaving.")


class ListenerStatus(Part):
    """Where clients begin."""

    name: Name = Field(description="Of the listener.")
    bootstrap: str = Field(max_length=512, description="HOST:PORT to begin with.")


class ColdTierStatus(Part):
    """Of the object store, as the nodes see it."""

    reachable: bool = Field(default=False, description="It answers each node that has said so.")
    away_seconds: Count = Field(default=0, description="For how long some node has had no answer.")


class RetiredNode(Part):
    """A tombstone."""

    node_id: int = Field(ge=0, description="The id, which is never given again.")
    storage_id: str = Field(max_length=128, description="Of its disk.")
    retired_at: Time = Field(description="When it was done.")
    claim: str = Field(default="", max_length=253, description="The volume claim that was kept; empty: none was.")
    given_up_ranges: Count = Field(default=0, description="Ranges of offsets that a person gave up.")


class StorageClusterStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    cluster_id: str = Field(default="", max_length=64, description="Of the metadata.")
    image: str = Field(default="", max_length=512, description="That every pod runs; empty while they differ.")
    nodes: NodeCounts = Field(default=NodeCounts(), description="How many nodes there are.")
    next_node_id: int = Field(default=0, ge=0, description="The id that the next node gets; ids are never given twice.")
    listeners: Annotated[tuple[ListenerStatus, ...], Field(max_length=4, json_schema_extra=keyed_by("name"))] = Field(
        default=(), description="Where clients begin."
    )
    cold_tier: ColdTierStatus | None = Field(default=None, description="The object store, as the nodes see it.")
    retired_nodes: Annotated[tuple[RetiredNode, ...], Field(max_length=32, json_schema_extra=keyed_by("nodeId"))] = (
        Field(default=(), description="Nodes that have left, the last 32.")
    )
    operator_version: str = Field(default="", max_length=64, description="Of the operator that wrote this.")
