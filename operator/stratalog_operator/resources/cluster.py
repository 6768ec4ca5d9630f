"""StorageCluster: what all nodes of a cluster share, and the rules by which they come, go and restart."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from stratalog.model.etcd_versions import FIRST_SAFE
from stratalog.model.listeners import SecurityProtocol
from stratalog_operator.resources.conditions import CONDITIONS_TEXT, GENERATION_TEXT, Conditions
from stratalog_operator.resources.requests import Rebalance, RebalanceStatus
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
    not_empty,
    rule,
    rules,
)

OWN_SETTINGS: Final = (
    "node.id",
    "broker.rack",
    "advertised.listeners",
    "listeners",
    "listener.security.protocol.map",
    "ssl.certificate.folder",
    "ssl.keystore.location",
    "ssl.truststore.location",
    "ssl.client.auth",
    "security.inter.broker.protocol",
    "http.security.protocol",
    "http.ssl.client.auth",
    "sasl.enabled.mechanisms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.sub.claim.name",
    "authorizer.class.name",
    "super.users",
    "auth.token.file",
    "auth.role.tokens.file",
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
    repository: str = Field(
        default="stratalog", min_length=1, max_length=255, description="Name of the image, without tag and digest."
    )
    tag: str | None = Field(
        default=None, max_length=128, description="Tag of the image. With neither tag nor digest: latest."
    )
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$", max_length=71)] | None = Field(
        default=None, description="Digest of the image, sha256:…; unlike a tag, it always names the same image."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the image is pulled."
    )
    pull_secrets: Annotated[tuple[SecretName, ...], Field(max_length=8, json_schema_extra=AS_SET)] = Field(
        default=(), description="Secrets for pulling the image."
    )

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag or 'latest'}"


_AFFECTED_TAG: Final = r"^.*:v?(([0-2]\\.|3\\.[0-4]\\.)[0-9]+.*|3\\.5\\.(1?[0-9]|20)([^0-9].*)?)$"
"""Of images: their tag states a version before FIRST_SAFE. As a text of CEL, where a backslash is two."""


class Etcd(Part):
    """Members made by the operator: a fixed number, never resized."""

    model_config = checked(
        rule(
            f"!has(self.image) || self.trial || !self.image.matches('{_AFFECTED_TAG}')",
            f"etcd: before {FIRST_SAFE}, etcd may lose data after a kill under load: give an etcd.image of "
            f"{FIRST_SAFE} or later, or an etcd of your own (meta.external), or say trial: true for a trial",
        )
    )
    replicas: int = Field(
        default=3,
        ge=1,
        le=7,
        description="Number of members: odd, and fixed once they exist.",
        json_schema_extra=rules(
            rule("self % 2 == 1", "etcd.replicas must be odd: an even number tolerates no more losses than one less"),
            rule("self == oldSelf", "etcd.replicas cannot be changed: use your own etcd (meta.external) to resize it"),
        ),
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description=f"Image with an etcd program, of version {FIRST_SAFE} or later. Default: the image of the cluster.",
    )
    trial: bool = Field(
        default=False,
        description=f"Accepts an etcd before {FIRST_SAFE}, which may lose data after a kill under load: only for "
        "trials.",
    )
    storage: Quantity = Field(
        default="2Gi",
        description="Size of the volume of each member.",
        json_schema_extra=rules(not_empty("etcd.storage")),
    )
    storage_class_name: str | None = Field(
        default=None,
        max_length=253,
        description="Storage class of the volumes of the members. Default: the default class.",
    )
    resources: Resources = Field(default=Resources(), description="Resources of each member.")


class ExternalEtcd(Part):
    """An etcd that the user runs, as in production."""

    model_config = checked(
        rule(
            "!has(self.clientTlsSecretRef) || has(self.caSecretRef)",
            "external: clientTlsSecretRef needs caSecretRef: without it there is no TLS to etcd",
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
        description="Prefix of all keys of this cluster, if several clusters share an etcd; fixed.",
        json_schema_extra=immutable("external.prefix", "it holds the metadata; create another cluster"),
    )
    credentials_secret_ref: SecretName | None = Field(
        default=None, description="Secret with username and password, if etcd has users."
    )
    ca_secret_ref: SecretName | None = Field(
        default=None, description="Secret with ca.crt, the CA of etcd's certificates. Default: no TLS."
    )
    client_tls_secret_ref: SecretName | None = Field(
        default=None, description="Secret with tls.crt and tls.key, if etcd requires client certificates."
    )


class Meta(Part):
    """The meta service: who keeps what is true about topics, segments and nodes."""

    model_config = checked(
        rule("has(self.etcd) != has(self.external)", "meta: give exactly one of etcd and external"),
        rule(
            "has(self.etcd) == has(oldSelf.etcd)",
            "meta: etcd and external cannot replace each other: the metadata is in the one that was given first",
        ),
    )
    replicas: int = Field(default=3, ge=1, le=5, description="Number of instances; one of them leads at a time.")
    etcd: Etcd | None = Field(default=None, description="An etcd that the operator runs.")
    external: ExternalEtcd | None = Field(default=None, description="An etcd that you run yourself.")
    resources: Resources = Field(default=Resources(), description="Resources of each instance.")
    token_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret whose key token holds the token for the meta and admin ports. Default: "
        "the operator creates one.",
    )
    role_tokens_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret whose key roles holds tokens of people and programs, ROLE NAME TOKEN a line, with the "
        "role viewer, operator or admin. Changed lines are used within about two minutes, without a restart. With "
        "tls.internal pods mount hashes of these tokens, which the operator writes (three minutes). Default: "
        "no such tokens.",
    )


class ColdTier(Part):
    """The object store to which sealed data move."""

    model_config = checked(
        rule(
            "(self.type == 'azure') == has(self.account)",
            "coldTier: type azure needs account, and no other type has it",
        ),
        rule(
            "self.type == 's3' || (self.region == 'us-east-1' && !self.virtualHostedStyle)",
            "coldTier: region and virtualHostedStyle are only for type s3",
        ),
        rule(
            "!has(self.serviceAccountName) || (self.type != 's3' && !has(self.credentialsSecretRef))",
            "coldTier: serviceAccountName is only for types gcs and azure, in place of credentialsSecretRef",
        ),
        rule(
            "self.type != 'azure' || self.bucket.matches('^[a-z0-9](-?[a-z0-9])+$')",
            "coldTier: a container of Azure has lower-case letters, digits and single hyphens in its name",
        ),
    )
    type: Literal["s3", "gcs", "azure"] = Field(
        default="s3",
        description="s3: Amazon S3, or a server that speaks its protocol. gcs: Google Cloud Storage. azure: Azure Blob "
        "Storage. Fixed.",
        json_schema_extra=immutable("coldTier.type", "it holds cold data; create another cluster"),
    )
    bucket: str = Field(
        min_length=3,
        max_length=63,
        pattern="^[a-z0-9][a-z0-9.-]*$",
        description="Name of the bucket, or of the container; fixed.",
        json_schema_extra=immutable("coldTier.bucket", "it holds cold data; create another cluster"),
    )
    account: str | None = Field(
        default=None,
        pattern="^[a-z0-9]{3,24}$",
        max_length=24,
        description="Storage account of Azure that has the container; fixed.",
        json_schema_extra=immutable("coldTier.account", "it holds cold data; create another cluster"),
    )
    prefix: str = Field(
        default="",
        max_length=256,
        pattern="^[A-Za-z0-9._/-]*$",
        description="Prefix of all objects of this cluster; fixed.",
        json_schema_extra=immutable("coldTier.prefix", "it holds cold data; create another cluster"),
    )
    endpoint: str = Field(
        default="",
        max_length=512,
        pattern="^(https?://[^?#@ ]+)?$",
        description="URL of the store; empty: that of Amazon, Google or Azure.",
    )
    region: str = Field(
        default="us-east-1", max_length=64, pattern="^[a-z0-9-]+$", description="Region of a bucket of S3."
    )
    virtual_hosted_style: bool = Field(
        default=False, description="Whether the bucket is in the host name instead of the path; S3 only."
    )
    credentials_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret with accessKeyId, secretAccessKey and, if needed, sessionToken (s3), with "
        "credentials.json, the key file of a service account (gcs), or with accountKey (azure). Default: the store "
        "needs none (s3); the pods are known to the cloud (gcs, azure).",
    )
    service_account_name: SecretName | None = Field(
        default=None,
        description="ServiceAccount of the pods that use the store, which the cloud knows by workload identity (gcs, "
        "azure). Create it yourself.",
    )


class Defaults(Part):
    """Of topics that do not say otherwise."""

    model_config = checked(
        rule(
            "self.minInsyncReplicas <= self.replicationFactor",
            "defaults: minInsyncReplicas must not exceed replicationFactor, or no write with acks=all is ever accepted",
        )
    )
    replication_factor: int = Field(default=3, ge=1, le=100, description="Replicas of each segment.")
    min_insync_replicas: int = Field(
        default=2, ge=1, le=100, description="Replicas that must be in sync for a write with acks=all to be accepted."
    )
    segment_bytes: int | None = Field(
        default=None, ge=256, le=68719476736, description="A segment that reaches this size rolls."
    )
    segment_max_age_seconds: int | None = Field(
        default=None, ge=1, description="A segment that reaches this age rolls."
    )


class ListenerAuthentication(Part):
    """How clients of a listener prove who they are."""

    model_config = checked(
        rule(
            "(self.type == 'oauth') == has(self.jwksEndpointUri)",
            "authentication: type oauth needs jwksEndpointUri, and no other type has it",
        ),
        rule(
            "self.type == 'oauth' || (!has(self.validIssuerUri) && !has(self.audience) && !has(self.userNameClaim))",
            "authentication: validIssuerUri, audience and userNameClaim are only for type oauth",
        ),
    )
    type: Literal["scram-sha-512", "tls", "oauth"] = Field(
        description="scram-sha-512: by a password (SASL). tls: by a client certificate, which everyone must show. "
        "oauth: by a signed token (SASL OAUTHBEARER)."
    )
    jwks_endpoint_uri: str | None = Field(
        default=None,
        min_length=9,
        max_length=1024,
        pattern="^https://[^ $]+$",
        description="Where the keys are that tokens are signed with.",
    )
    valid_issuer_uri: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        pattern="^[^ $]+$",
        description="Issuer that tokens must name. Default: any.",
    )
    audience: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        pattern="^[^ $]+$",
        description="Audience that tokens must name. Default: any.",
    )
    user_name_claim: str | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        pattern="^[^ $]+$",
        description="Claim of a token that names the user. Default: sub.",
    )


class Listener(Part):
    """A listener for Kafka clients."""

    model_config = checked(
        rule(
            "(self.type == 'nodeport') == has(self.firstNodePort)",
            "listener: firstNodePort is only for type nodeport",
        ),
        rule(
            "self.tls || !has(self.authentication) || self.authentication.type == 'scram-sha-512'",
            "listener: authentication of type tls or oauth needs tls: true",
        ),
    )
    name: Name = Field(description="Name of the listener; it must be unique.")
    port: int = Field(ge=1024, le=65535, description="Port of the listener in each pod.")
    type: Literal["internal", "nodeport"] = Field(
        default="internal",
        description="Who connects: pods of this Kubernetes cluster (internal), or clients outside it, through a "
        "port of its machines (nodeport).",
    )
    first_node_port: int | None = Field(
        default=None,
        ge=30000,
        le=32766,
        description="Port of the bootstrap Service on every machine; storage node N uses this port + 1 + N.",
    )
    advertised_host: str | None = Field(
        default=None,
        max_length=253,
        pattern="^[A-Za-z0-9:]([A-Za-z0-9.:-]*[A-Za-z0-9:])?$",
        description="Host that clients outside connect to, for all nodes. Default: the address of the machine of "
        "each pod.",
    )
    tls: bool = Field(default=False, description="Whether the listener speaks TLS, with the certificate of spec.tls.")
    authentication: ListenerAuthentication | None = Field(
        default=None, description="How clients prove who they are. Default: not at all (User:ANONYMOUS)."
    )

    @property
    def is_of_nodes(self) -> bool:
        """The one through which the nodes reach each other."""
        return self.type == "internal" and not self.tls and self.authentication is None

    @property
    def protocol(self) -> SecurityProtocol:
        """As Kafka names it."""
        is_sasl = self.authentication is not None and self.authentication.type != "tls"
        if self.tls:
            return SecurityProtocol.SASL_SSL if is_sasl else SecurityProtocol.SSL
        return SecurityProtocol.SASL_PLAINTEXT if is_sasl else SecurityProtocol.PLAINTEXT


class CertificateAuthority(Part):
    """The operator's own authority, and the certificates that it issues."""

    model_config = checked(
        rule(
            "self.renewalDays < self.validityDays && self.certificateRenewalDays < self.certificateDays",
            "authority: renewalDays must be less than validityDays, and certificateRenewalDays than certificateDays",
        )
    )
    validity_days: int = Field(default=1825, ge=2, le=36500, description="How long the authority is valid.")
    renewal_days: int = Field(
        default=180, ge=1, le=36499, description="How long before its end another authority takes its place."
    )
    overlap_seconds: int = Field(
        default=604800,
        ge=60,
        le=31536000,
        description="How long the next authority is trusted before it issues certificates: clients have that time to "
        "take the new ca.crt.",
    )
    certificate_days: int = Field(default=365, ge=2, le=3650, description="How long a certificate is valid.")
    certificate_renewal_days: int = Field(
        default=60, ge=1, le=3649, description="How long before its end a certificate is issued again."
    )


class Tls(Part):
    """Certificates of the cluster: what its parts show to each other, and storage nodes to clients."""

    model_config = checked(
        rule(
            "!(has(self.certificateSecretRef) && has(self.authority))",
            "tls: give certificateSecretRef (a certificate from elsewhere) or authority (the operator's own), not both",
        ),
        rule(
            "!(has(self.certificateSecretRef) && self.internal)",
            "tls: internal needs the operator's own authority: certificateSecretRef is one certificate for all nodes, "
            "which does not prove which node shows it",
        ),
    )
    internal: bool = Field(
        default=False,
        description="Whether storage nodes, meta service and operator speak TLS with each other, and prove who they "
        "are by certificates of the operator's own authority. Only a new cluster takes it: one that runs keeps what it "
        "has (status.internalProtocol).",
    )
    certificate_secret_ref: SecretName | None = Field(
        default=None,
        description="Secret with tls.crt, tls.key and ca.crt, as cert-manager makes it. Its certificate must have the "
        "names by which clients reach the nodes. Default: the operator issues certificates by its own authority.",
    )
    authority: CertificateAuthority | None = Field(
        default=None, description="Times of the operator's own authority. Default: those that its fields name."
    )


class ClusterAuthorization(Part):
    """What clients may do."""

    type: Literal["simple"] = Field(description="simple: what the rules (ACLs) of the cluster say.")
    super_users: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=512, pattern="^[^;$]+$")], ...],
        Field(
            max_length=32,
            json_schema_extra={
                **AS_SET,
                **rules(
                    rule(
                        "self.all(user, !user.startsWith('User:'))",
                        "superUsers: give names without User:, such as admin or CN=admin",
                    )
                ),
            },
        ),
    ] = Field(default=(), description="Users that may do everything, such as admin or CN=admin.")


class ScaleIn(Part):
    """How nodes leave."""

    mode: Literal["Offload", "RemountVolume"] = Field(
        default="Offload",
        description="Offload: the data of a leaving node is served from the object store or from other copies. "
        "RemountVolume: its volume is kept, and read in place.",
    )
    stall_after_seconds: int = Field(
        default=1800,
        ge=10,
        le=604800,
        description="A retirement without progress for this long is reported as stalled.",
    )
    verify_interval_seconds: int = Field(
        default=30, ge=1, le=86400, description="Time between the two checks that everything is stored elsewhere."
    )


class RollingUpdate(Part):
    """How pods restart: one at a time, always."""

    readiness_timeout_seconds: int = Field(
        default=600,
        ge=10,
        le=86400,
        description="If a pod is not ready again after this time, the rolling update stops.",
    )


class StorageRetention(Part):
    """What becomes of volume claims."""

    when_scaled: Literal["Delete", "Retain"] = Field(
        default="Delete",
        description="What happens to the volume claim of a node that has left, once its data is not needed any more.",
    )
    when_deleted: Literal["Delete", "Retain"] = Field(
        default="Retain", description="What happens to the volume claims of a cluster that is deleted."
    )


class DisruptionBudget(Part):
    """Of storage nodes."""

    enabled: bool = Field(default=True, description="Whether drains wait while a storage node is unavailable.")


class NetworkPolicy(Part):
    """Of the pods of the cluster."""

    enabled: bool = Field(
        default=False,
        description="Whether only pods of the cluster and the operator reach etcd, the meta service and the listener "
        "of the nodes. Clients need further listeners then.",
    )


_LISTENERS: Final = (Listener(name="internal", port=9092),)


class StorageClusterSpec(Part):
    """What is asked for."""

    model_config = checked(
        rule("!has(oldSelf.coldTier) || has(self.coldTier)", "coldTier cannot be removed: it holds cold data"),
    )
    image: Image = Field(default=Image(), description="Image of all parts.")
    paused: bool = Field(
        default=False, description="While it is true, nothing is applied; the status is still updated."
    )
    cluster_domain: str = Field(
        default="cluster.local",
        max_length=253,
        pattern="^[a-z0-9.-]+$",
        description="DNS domain of this Kubernetes cluster.",
    )
    meta: Meta = Field(description="The meta service and its store.")
    cold_tier: ColdTier | None = Field(
        default=None, description="Object store for sealed data. Default: data is stored only on disks."
    )
    defaults: Defaults = Field(default=Defaults(), description="Values for topics that do not set their own.")
    listeners: Annotated[
        tuple[Listener, ...],
        Field(
            min_length=1,
            max_length=4,
            json_schema_extra={
                **keyed_by("name"),
                **rules(
                    rule(
                        "self.exists_one(l, l.type == 'internal' && !l.tls && !has(l.authentication))",
                        "listeners: exactly one must be of type internal without tls and authentication: the nodes "
                        "reach each other through it",
                    ),
                    rule(
                        "!self.exists(l, has(l.authentication) && l.authentication.type == 'tls') || "
                        "self.all(l, !l.tls || (has(l.authentication) && l.authentication.type == 'tls'))",
                        "listeners: if one asks for client certificates (authentication tls), all with tls must: a "
                        "node asks for them on all or on none",
                    ),
                    rule(
                        "size(self.filter(l, has(l.authentication) && l.authentication.type == 'oauth')) <= 1",
                        "listeners: only one may have authentication of type oauth: a node knows one issuer",
                    ),
                    rule(
                        "self.all(l, self.exists_one(m, m.port == l.port))",
                        "listeners: each must have its own port",
                    ),
                    rule(
                        "self.all(l, size(l.name) <= 15)",
                        "listeners: a name has at most 15 characters: names of Services are derived from it, from the "
                        "names of cluster and pool, and from the id of the node",
                    ),
                    rule(
                        "self.all(l, l.name != 'internal' || "
                        "(l.type == 'internal' && !l.tls && !has(l.authentication)))",
                        "listeners: the name internal is reserved for the one that the nodes use among themselves",
                    ),
                    rule(
                        "self.all(l, !(l.port in [9100, 9644]))",
                        "listeners: ports 9100 and 9644 are used by the meta service and the admin API",
                    ),
                ),
            },
        ),
    ] = Field(default=_LISTENERS, description="Listeners for Kafka clients.")
    tls: Tls | None = Field(
        default=None, description="Certificate of listeners with tls. Default: one of the operator's own authority."
    )
    authorization: ClusterAuthorization | None = Field(
        default=None, description="What clients may do. Default: everything."
    )
    config: Annotated[
        dict[str, Annotated[str, Field(max_length=1024)]],
        Field(
            max_length=100,
            json_schema_extra=rules(
                rule(
                    f"self.all(key, !(key in [{_OWN}]))",
                    f"config: these settings are managed by the operator: {', '.join(OWN_SETTINGS)}",
                )
            ),
        ),
    ] = Field(default={}, description="Settings of the processes, by key (docs/configure.md).")
    rebalance: Rebalance | None = Field(
        default=None, description="A request to spread new writes evenly over the nodes. Default: none."
    )
    scale_in: ScaleIn = Field(default=ScaleIn(), description="How nodes leave.")
    rolling_update: RollingUpdate = Field(default=RollingUpdate(), description="How pods restart.")
    storage_retention: StorageRetention = Field(
        default=StorageRetention(), description="What happens to volume claims."
    )
    network_policy: NetworkPolicy = Field(
        default=NetworkPolicy(), description="NetworkPolicies of the pods of the cluster."
    )
    pod_disruption_budget: DisruptionBudget = Field(
        default=DisruptionBudget(), description="PodDisruptionBudget of the storage nodes."
    )

    @property
    def asks_for_internal_tls(self) -> bool:
        return self.tls is not None and self.tls.internal

    @property
    def own_authority(self) -> CertificateAuthority:
        """Its times."""
        given = None if self.tls is None else self.tls.authority
        return CertificateAuthority() if given is None else given


class NodeCounts(Part):
    """Of storage nodes, in all pools."""

    desired: Count = Field(default=0, description="Nodes that the pools ask for.")
    ready: Count = Field(default=0, description="Nodes that stay and whose pods serve.")
    retiring: Count = Field(default=0, description="Nodes that are leaving.")


class ListenerStatus(Part):
    """Where clients begin."""

    name: Name = Field(description="Name of the listener.")
    bootstrap: str = Field(max_length=512, description="HOST:PORT that clients use as bootstrap server.")


class ColdTierStatus(Part):
    """Of the object store, as the nodes see it."""

    reachable: bool = Field(default=False, description="Whether all nodes that have reported reach the object store.")
    away_seconds: Count = Field(
        default=0, description="Longest time that a node has had no answer from the object store."
    )


class EtcdMember(Part):
    """A member of the etcd that the operator runs."""

    name: Annotated[str, Field(max_length=64)] = Field(description="Name of its pod.")
    member_id: str = Field(max_length=32, description="Id of the member in etcd.")
    claim_uid: str = Field(max_length=64, description="UID of the volume claim that has its data.")
    volume: str = Field(default="", max_length=253, description="Volume of that claim.")
    votes: bool = Field(default=True, description="False while it catches up on a new volume.")
    version: str = Field(default="", max_length=64, description="Version of etcd that it answered last.")
    pod_uid: str = Field(default="", max_length=64, description="UID of the pod that answered it.")


class RetiredNode(Part):
    """A tombstone."""

    node_id: int = Field(ge=0, description="Id of the node; it is never used again.")
    storage_id: str = Field(max_length=128, description="Id of its disk.")
    retired_at: Time = Field(description="When its retirement was finished.")
    claim: str = Field(default="", max_length=253, description="Volume claim that was kept; empty if none was.")
    given_up_ranges: Count = Field(default=0, description="Number of offset ranges that a person gave up.")


class StorageClusterStatus(Part):
    """What is observed."""

    observed_generation: int = Field(default=0, ge=0, description=GENERATION_TEXT)
    conditions: Conditions = Field(default=(), description=CONDITIONS_TEXT)
    cluster_id: str = Field(default="", max_length=64, description="Id of the cluster in its metadata.")
    image: str = Field(default="", max_length=512, description="Image that every pod runs; empty while they differ.")
    nodes: NodeCounts = Field(default=NodeCounts(), description="Numbers of nodes.")
    next_node_id: int = Field(default=0, ge=0, description="Id of the next node; ids are never used twice.")
    listeners: Annotated[tuple[ListenerStatus, ...], Field(max_length=4, json_schema_extra=keyed_by("name"))] = Field(
        default=(), description="Where clients connect first."
    )
    cold_tier: ColdTierStatus | None = Field(default=None, description="The object store, as the nodes see it.")
    retired_nodes: Annotated[tuple[RetiredNode, ...], Field(max_length=32, json_schema_extra=keyed_by("nodeId"))] = (
        Field(default=(), description="The last 32 nodes that have left.")
    )
    etcd_members: Annotated[tuple[EtcdMember, ...], Field(max_length=7, json_schema_extra=keyed_by("name"))] = Field(
        default=(),
        description="Members of the etcd that the operator runs, since they first served together. One of them never "
        "starts under its id on another volume.",
    )
    internal_protocol: str = Field(
        default="",
        max_length=16,
        description="What storage nodes, meta service and operator speak with each other since the cluster was made: "
        "SSL or PLAINTEXT.",
    )
    etcd_protocol: str = Field(
        default="",
        max_length=16,
        description="What the etcd that the operator runs speaks with its clients since the cluster was made: SSL or "
        "PLAINTEXT.",
    )
    rebalance: RebalanceStatus | None = Field(default=None, description="The newest request to rebalance.")
    etcd_peer_protocol: str = Field(
        default="",
        max_length=16,
        description="What the members of the etcd that the operator runs speak with each other: SSL, PLAINTEXT, or "
        "MIGRATING while they change over from plain text.",
    )
    certificates_expire: Time | None = Field(
        default=None, description="When the first certificate ends that the operator issued."
    )
    operator_version: str = Field(
        default="", max_length=64, description="Version of the operator that wrote this status."
    )
