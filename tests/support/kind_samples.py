"""Objects of the operator's kinds for tests, and for each CEL rule what it lets pass and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratalog_operator.resources.kinds import ARCHIVE_JOB, CLUSTER, MOUNT, NODE, POOL, TOPIC, USER, Kind
from stratalog_operator.resources.names import API_VERSION

Object = dict[str, Any]

_SPECS: Final[Mapping[str, Object]] = {
    CLUSTER.name: {
        "meta": {"etcd": {}},
        "coldTier": {"bucket": "flights", "prefix": "a"},
        "listeners": [{"name": "internal", "port": 9092}],
    },
    POOL.name: {"clusterRef": "main", "storage": {"size": "10Gi", "className": "fast"}},
    NODE.name: {"clusterRef": "main", "poolRef": "hot", "nodeId": 7, "zone": "a"},
    TOPIC.name: {"clusterRef": "main", "topicName": "flights", "shards": 3},
    USER.name: {"clusterRef": "main", "authentication": {"type": "scram-sha-512"}},
    MOUNT.name: {"clusterRef": "main", "source": {"topics": {"names": ["flights"]}}},
    ARCHIVE_JOB.name: {
        "clusterRef": "main",
        "action": "Archive",
        "topics": ["flights"],
        "archive": {"to": "s3://tables/main?region=eu-1"},
        "schedule": "30 2 * * *",
    },
}
_NAMES: Final = {
    CLUSTER.name: "main",
    POOL.name: "hot",
    NODE.name: "main-hot-7",
    TOPIC.name: "flights",
    USER.name: "alice",
    MOUNT.name: "jan",
    ARCHIVE_JOB.name: "nightly",
}
ABSENT: Final = object()
"""As a value of `changed`: the field goes."""


def sample(kind: Kind, changes: Mapping[str, object] | None = None) -> Object:
    """A whole object that passes; `changes` by dotted path, such as `spec.shards`."""
    made: Object = {
        "apiVersion": API_VERSION,
        "kind": kind.name,
        "metadata": {"name": _NAMES[kind.name]},
        "spec": copy.deepcopy(dict(_SPECS[kind.name])),
    }
    for path, value in (changes or {}).items():
        *way, last = path.split(".")
        place = made
        for word in way:
            place = place.setdefault(word, {})
        if value is ABSENT:
            place.pop(last, None)
        else:
            place[last] = value
    return made


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One rule. With `before` it is about a change of that object."""

    kind: Kind
    message: str
    """How the rule's own sentence begins."""
    good: Mapping[str, object]
    bad: Mapping[str, object]
    before: Mapping[str, object] | None = None

    @property
    def name(self) -> str:
        return f"{self.kind.short_name}: {self.message}"


def _listener(name: str, port: int, **more: object) -> Object:
    return {"name": name, "port": port, **more}


_IN: Final = _listener("internal", 9092)
_OUT: Final = _listener("outside", 9094, type="nodeport", firstNodePort=30092)
_USERS: Final = _listener("users", 9093, tls=True, authentication={"type": "scram-sha-512"})
_BY_CERTIFICATE: Final = _listener("certificates", 9096, tls=True, authentication={"type": "tls"})
_BY_TOKEN: Final = _listener(
    "tokens", 9097, tls=True, authentication={"type": "oauth", "jwksEndpointUri": "https://example.org/keys"}
)
_CERTIFICATE: Final = {"certificateSecretRef": "main-certificate"}
_LISTENERS = "spec.listeners"
_META = "spec.meta"
_AZURE: Final = {"type": "azure", "bucket": "flights", "account": "acme"}
_EXTERNAL: Final = {"external": {"endpoints": ["etcd-0:2379"], "prefix": "/a"}}
_RETIRED: Final = {"retiredNode": {"nodeId": 3, "storageId": "s-3"}}

_AUTHENTICATION = "spec.authentication"
_PASSWORD: Final = {"valueFrom": {"secretKeyRef": {"name": "chosen", "key": "password"}}}


def _acl(**resource: str) -> Object:
    return {"type": "simple", "acls": [{"resource": resource, "operations": ["Read"]}]}


_OF_ARCHIVE = "spec.archive"
_TO_TABLES: Final = {"to": "s3://tables/main"}
_EXPORTS: Final = {"spec.action": "Export", "spec.archive": ABSENT, "spec.export": {"to": "s3://files/main"}}
_TO_KAFKA: Final = {"to": "kafka-1:9092", "format": "kafka"}

JOB_CASES: Final = (
    RuleCase(ARCHIVE_JOB, "metadata.name of an ArchiveJob", {"metadata.name": "a" * 63}, {"metadata.name": "a" * 64}),
    RuleCase(ARCHIVE_JOB, "clusterRef cannot", {"spec.suspend": True}, {"spec.clusterRef": "other"}, before={}),
    RuleCase(
        ARCHIVE_JOB,
        "action Archive needs archive",
        {"spec.action": "Verify", _OF_ARCHIVE: ABSENT},
        {"spec.action": "Verify"},
    ),
    RuleCase(ARCHIVE_JOB, "action Export needs export", _EXPORTS, {"spec.export": {"to": "s3://files/main"}}),
    RuleCase(
        ARCHIVE_JOB,
        "compact: only action",
        {"spec.action": "Compact", _OF_ARCHIVE: ABSENT, "spec.compact": {"pack": True}},
        {"spec.compact": {"pack": True}},
    ),
    RuleCase(ARCHIVE_JOB, "topics: action Archive", {"spec.topics": ["a", "b"]}, {"spec.topics": []}),
    RuleCase(
        ARCHIVE_JOB,
        "timeZone is that",
        {"spec.timeZone": "Europe/Berlin"},
        {"spec.timeZone": "Europe/Berlin", "spec.schedule": ABSENT},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "runRequestedAt: a request is named by its time",
        {"spec.runRequestedAt": "2013-01-01T00:00:00Z"},
        {"spec.runRequestedAt": "0001-01-01T00:00:00Z"},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "archive: kinds avro",
        {_OF_ARCHIVE: {**_TO_TABLES, "kind": "avro", "schemaConfigMapRef": "schemas", "schemaKey": "flight.avsc"}},
        {_OF_ARCHIVE: {**_TO_TABLES, "kind": "avro"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "archive: message names",
        {_OF_ARCHIVE: {**_TO_TABLES, "kind": "protobuf", "schemaConfigMapRef": "s", "message": "a.Flight"}},
        {_OF_ARCHIVE: {**_TO_TABLES, "message": "a.Flight"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "archive: confluent is for",
        {_OF_ARCHIVE: {**_TO_TABLES, "confluent": True}},
        {_OF_ARCHIVE: {**_TO_TABLES, "confluent": True, "kind": "raw"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "archive: schemaKey needs",
        {_OF_ARCHIVE: {**_TO_TABLES, "schemaConfigMapRef": "schemas", "schemaKey": "flight.json"}},
        {_OF_ARCHIVE: {**_TO_TABLES, "schemaKey": "flight.json"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "archive.to: the URL must have no credentials",
        {_OF_ARCHIVE: {"to": "s3://tables/main?endpoint=https://s3.example.org"}},
        {_OF_ARCHIVE: {"to": "s3://tables/main?AWS_SECRET_ACCESS_KEY=x"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "export.to: the URL must have no credentials",
        _EXPORTS,
        {**_EXPORTS, "spec.export": {"to": "s3://key:word@files/main"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "export: with format kafka",
        {**_EXPORTS, "spec.export": _TO_KAFKA},
        {**_EXPORTS, "spec.export": {"to": "s3://files/main", "format": "kafka"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "export: clientConfigSecretRef",
        {**_EXPORTS, "spec.export": {**_TO_KAFKA, "clientConfigSecretRef": "login"}},
        {**_EXPORTS, "spec.export": {"to": "s3://files/main", "clientConfigSecretRef": "login"}},
    ),
    RuleCase(
        ARCHIVE_JOB,
        "image: give tag",
        {"spec.image": {"repository": "pipeline", "tag": "1"}},
        {"spec.image": {"tag": "1", "digest": f"sha256:{'0' * 64}"}},
    ),
)

CASES: Final = (
    *JOB_CASES,
    RuleCase(CLUSTER, "metadata.name of a StorageCluster", {}, {"metadata.name": "a" * 21}),
    RuleCase(
        CLUSTER,
        "image: give tag",
        {"spec.image": {"tag": "1"}},
        {"spec.image": {"tag": "1", "digest": f"sha256:{'0' * 64}"}},
    ),
    RuleCase(CLUSTER, "etcd.storage must be", {f"{_META}.etcd.storage": "3Gi"}, {f"{_META}.etcd.storage": "0"}),
    RuleCase(CLUSTER, "etcd.replicas must be odd", {f"{_META}.etcd.replicas": 5}, {f"{_META}.etcd.replicas": 2}),
    RuleCase(CLUSTER, "etcd.replicas cannot", {"spec.paused": True}, {f"{_META}.etcd.replicas": 5}, before={}),
    RuleCase(
        CLUSTER,
        "etcd: before 3.5.21, etcd may lose data",
        {_META: {"etcd": {"image": "registry:5000/etcd:v3.5.21"}}},
        {_META: {"etcd": {"image": "registry:5000/etcd:v3.5.20"}}},
    ),
    RuleCase(
        CLUSTER,
        "external: clientTlsSecretRef",
        {_META: {"external": {"endpoints": ["b:2379"], "caSecretRef": "a", "clientTlsSecretRef": "b"}}},
        {_META: {"external": {"endpoints": ["b:2379"], "clientTlsSecretRef": "b"}}},
    ),
    RuleCase(CLUSTER, "meta: give exactly one", {_META: _EXTERNAL}, {_META: {}}),
    RuleCase(CLUSTER, "meta: etcd and external cannot", {"spec.meta.replicas": 5}, {_META: _EXTERNAL}, before={}),
    RuleCase(
        CLUSTER,
        "external.prefix cannot",
        {_META: {"external": {"endpoints": ["b:2379"], "prefix": "/a"}}},
        {_META: {"external": {"endpoints": ["etcd-0:2379"], "prefix": "/b"}}},
        before={_META: _EXTERNAL},
    ),
    RuleCase(
        CLUSTER, "coldTier cannot be removed", {"spec.coldTier.region": "eu-1"}, {"spec.coldTier": ABSENT}, before={}
    ),
    RuleCase(
        CLUSTER,
        "coldTier.bucket cannot",
        {"spec.coldTier.region": "eu-1"},
        {"spec.coldTier.bucket": "other"},
        before={},
    ),
    RuleCase(
        CLUSTER, "coldTier.prefix cannot", {"spec.coldTier.region": "eu-1"}, {"spec.coldTier.prefix": "b"}, before={}
    ),
    RuleCase(
        CLUSTER, "coldTier.type cannot", {"spec.coldTier.region": "eu-1"}, {"spec.coldTier.type": "gcs"}, before={}
    ),
    RuleCase(
        CLUSTER,
        "coldTier.account cannot",
        {"spec.coldTier": {**_AZURE, "endpoint": "https://blob.example"}},
        {"spec.coldTier": {**_AZURE, "account": "other"}},
        before={"spec.coldTier": _AZURE},
    ),
    RuleCase(
        CLUSTER,
        "coldTier: type azure needs account",
        {"spec.coldTier": _AZURE},
        {"spec.coldTier": {"type": "azure", "bucket": "flights"}},
    ),
    RuleCase(
        CLUSTER,
        "coldTier: region and virtualHostedStyle",
        {"spec.coldTier": {"type": "gcs", "bucket": "flights"}},
        {"spec.coldTier": {"type": "gcs", "bucket": "flights", "region": "eu-1"}},
    ),
    RuleCase(
        CLUSTER,
        "coldTier: serviceAccountName",
        {"spec.coldTier": {**_AZURE, "serviceAccountName": "log"}},
        {"spec.coldTier": {**_AZURE, "serviceAccountName": "log", "credentialsSecretRef": "store"}},
    ),
    RuleCase(
        CLUSTER,
        "coldTier: a container of Azure",
        {"spec.coldTier": {**_AZURE, "bucket": "our-flights"}},
        {"spec.coldTier": {**_AZURE, "bucket": "our.flights"}},
    ),
    RuleCase(
        CLUSTER,
        "defaults: minInsyncReplicas",
        {"spec.defaults": {"replicationFactor": 2, "minInsyncReplicas": 2}},
        {"spec.defaults": {"replicationFactor": 1}},
    ),
    RuleCase(
        CLUSTER, "listener: firstNodePort", {_LISTENERS: [_IN, _OUT]}, {_LISTENERS: [{**_IN, "firstNodePort": 30000}]}
    ),
    RuleCase(CLUSTER, "listeners: exactly one", {_LISTENERS: [_IN, _OUT]}, {_LISTENERS: [_OUT]}),
    RuleCase(
        CLUSTER,
        "listeners: exactly one",
        {_LISTENERS: [_IN, {**_USERS, "tls": False}]},
        {_LISTENERS: [_IN, _listener("users", 9093)]},
    ),
    RuleCase(
        CLUSTER,
        "listener: authentication of type tls or oauth",
        {_LISTENERS: [_IN, _BY_CERTIFICATE], "spec.tls": _CERTIFICATE},
        {_LISTENERS: [_IN, {**_BY_CERTIFICATE, "tls": False}]},
    ),
    RuleCase(
        CLUSTER,
        "authentication: type oauth needs",
        {_LISTENERS: [_IN, _BY_TOKEN], "spec.tls": _CERTIFICATE},
        {_LISTENERS: [_IN, {**_BY_TOKEN, "authentication": {"type": "oauth"}}], "spec.tls": _CERTIFICATE},
    ),
    RuleCase(
        CLUSTER,
        "authentication: validIssuerUri, audience",
        {_LISTENERS: [_IN, _USERS], "spec.tls": _CERTIFICATE},
        {
            _LISTENERS: [_IN, {**_USERS, "authentication": {"type": "scram-sha-512", "audience": "kafka"}}],
            "spec.tls": _CERTIFICATE,
        },
    ),
    RuleCase(
        CLUSTER,
        "listeners: if one asks for client certificates",
        {_LISTENERS: [_IN, _BY_CERTIFICATE], "spec.tls": _CERTIFICATE},
        {_LISTENERS: [_IN, _BY_CERTIFICATE, _USERS], "spec.tls": _CERTIFICATE},
    ),
    RuleCase(
        CLUSTER,
        "listeners: only one may have authentication of type oauth",
        {_LISTENERS: [_IN, _BY_TOKEN, _USERS], "spec.tls": _CERTIFICATE},
        {_LISTENERS: [_IN, _BY_TOKEN, {**_BY_TOKEN, "name": "more", "port": 9098}], "spec.tls": _CERTIFICATE},
    ),
    RuleCase(
        CLUSTER,
        "tls: give certificateSecretRef",
        {"spec.tls": {"authority": {"validityDays": 400}}},
        {"spec.tls": {**_CERTIFICATE, "authority": {"validityDays": 400}}},
    ),
    RuleCase(
        CLUSTER,
        "tls: internal needs",
        {"spec.tls": {"internal": True, "authority": {"validityDays": 400}}},
        {"spec.tls": {**_CERTIFICATE, "internal": True}},
    ),
    RuleCase(
        CLUSTER,
        "authority: renewalDays must be less",
        {"spec.tls": {"authority": {"validityDays": 90, "renewalDays": 89}}},
        {"spec.tls": {"authority": {"certificateDays": 60}}},
    ),
    RuleCase(
        CLUSTER,
        "superUsers: give names without User:",
        {"spec.authorization": {"type": "simple", "superUsers": ["admin"]}},
        {"spec.authorization": {"type": "simple", "superUsers": ["User:admin"]}},
    ),
    RuleCase(
        CLUSTER, "listeners: each must have", {_LISTENERS: [_IN, _OUT]}, {_LISTENERS: [_IN, {**_OUT, "port": 9092}]}
    ),
    RuleCase(
        CLUSTER,
        "listeners: a name has at most 15 characters",
        {_LISTENERS: [_IN, {**_OUT, "name": "outside-of-here"}]},
        {_LISTENERS: [_IN, {**_OUT, "name": "outside-of-heres"}]},
    ),
    RuleCase(
        CLUSTER,
        "listeners: the name internal is reserved",
        {_LISTENERS: [_IN, _OUT]},
        {_LISTENERS: [{**_IN, "name": "a"}, {**_OUT, "name": "internal"}]},
    ),
    RuleCase(CLUSTER, "listeners: ports 9100", {_LISTENERS: [_IN]}, {_LISTENERS: [_listener("internal", 9100)]}),
    RuleCase(
        CLUSTER, "config: these settings", {"spec.config": {"log.level": "debug"}}, {"spec.config": {"node.id": "7"}}
    ),
    RuleCase(POOL, "metadata.name of a StorageNodePool must", {}, {"metadata.name": "7-begins-with-digit"}),
    RuleCase(
        POOL, "metadata.name of a StorageNodePool cannot be", {"metadata.name": "etcdhot"}, {"metadata.name": "etcd"}
    ),
    RuleCase(
        POOL,
        "metadata.name of a StorageNodePool cannot be",
        {"metadata.name": "meta-hot"},
        {"metadata.name": "hot-meta"},
    ),
    RuleCase(POOL, "clusterRef cannot", {"spec.replicas": 5}, {"spec.clusterRef": "other"}, before={}),
    RuleCase(
        POOL, "storage.size cannot shrink", {"spec.storage.size": "11Gi"}, {"spec.storage.size": "9999Mi"}, before={}
    ),
    RuleCase(POOL, "storage.size must be", {"spec.storage.size": "1"}, {"spec.storage.size": "0"}),
    RuleCase(POOL, "storage.className cannot", {"spec.replicas": 5}, {"spec.storage.className": ABSENT}, before={}),
    RuleCase(NODE, "metadata.name of a StorageNode", {}, {"metadata.name": "main-hot-8"}),
    RuleCase(NODE, "clusterRef cannot", {"spec.retire": True}, {"spec.clusterRef": "other"}, before={}),
    RuleCase(NODE, "poolRef cannot", {"spec.retire": True}, {"spec.poolRef": "other"}, before={}),
    RuleCase(NODE, "nodeId cannot", {"spec.retire": True}, {"spec.nodeId": 8}, before={}),
    RuleCase(NODE, "zone cannot", {"spec.retire": True}, {"spec.zone": "b"}, before={}),
    RuleCase(TOPIC, "clusterRef cannot", {"spec.shards": 4}, {"spec.clusterRef": "other"}, before={}),
    RuleCase(TOPIC, "topicName cannot", {"spec.shards": 4}, {"spec.topicName": "other"}, before={}),
    RuleCase(TOPIC, "topicName: . and ..", {"spec.topicName": ".a"}, {"spec.topicName": ".."}),
    RuleCase(TOPIC, "shards cannot be reduced", {"spec.shards": 4}, {"spec.shards": 2}, before={}),
    RuleCase(
        TOPIC,
        "minInsyncReplicas must not",
        {"spec.replicationFactor": 2, "spec.minInsyncReplicas": 2},
        {"spec.replicationFactor": 2, "spec.minInsyncReplicas": 3},
    ),
    RuleCase(
        TOPIC,
        "policy Direct acknowledges",
        {"spec.policy": "Direct", "spec.tiering": {"enabled": True}},
        {"spec.policy": "Direct", "spec.tiering": {"enabled": False}},
    ),
    RuleCase(
        TOPIC,
        "config: use the fields",
        {"spec.config": {"segment.bytes": "1048576"}},
        {"spec.config": {"retention.ms": "1"}},
    ),
    RuleCase(
        TOPIC,
        "tiering: hotRetentionSeconds must",
        {"spec.tiering": {"hotRetentionSeconds": 900, "retentionSeconds": -1}},
        {"spec.tiering": {"hotRetentionSeconds": 900, "retentionSeconds": 899}},
    ),
    RuleCase(
        TOPIC,
        "tiering: hotRetentionSeconds and",
        {"spec.tiering": {"enabled": False}},
        {"spec.tiering": {"enabled": False, "hotBytes": 1}},
    ),
    RuleCase(
        TOPIC,
        "tiering: storageClass needs",
        {"spec.tiering": {"enabled": True, "storageClass": "GLACIER_IR"}},
        {"spec.tiering": {"enabled": False, "storageClass": "GLACIER_IR"}},
    ),
    RuleCase(
        TOPIC,
        "tiering: compression needs",
        {"spec.tiering": {"enabled": True, "compression": "zstd"}},
        {"spec.tiering": {"enabled": False, "compression": "zstd"}},
    ),
    RuleCase(
        TOPIC,
        "tiering: uploadIntervalSeconds needs",
        {"spec.tiering": {"enabled": True, "uploadIntervalSeconds": 60}},
        {"spec.tiering": {"enabled": False, "uploadIntervalSeconds": 60}},
    ),
    RuleCase(
        TOPIC,
        "tiering: uploadIntervalSeconds has no effect with policy Direct",
        {"spec.policy": "Replicated", "spec.tiering": {"enabled": True, "uploadIntervalSeconds": 60}},
        {"spec.policy": "Direct", "spec.tiering": {"enabled": True, "uploadIntervalSeconds": 60}},
    ),
    RuleCase(
        TOPIC,
        "tiering: archiveAfterSeconds and archiveClass need",
        {"spec.tiering": {"enabled": True, "archiveAfterSeconds": 7_776_000, "archiveClass": "GLACIER"}},
        {"spec.tiering": {"enabled": False, "archiveAfterSeconds": 7_776_000}},
    ),
    RuleCase(
        TOPIC,
        "sealRequestedAt: a request is named",
        {"spec.sealRequestedAt": "2026-11-30T19:00:00Z"},
        {"spec.sealRequestedAt": "0001-01-01T00:00:00Z"},
    ),
    RuleCase(
        CLUSTER,
        "rebalance.requestedAt: a request is named",
        {"spec.rebalance": {"requestedAt": "2026-11-30T19:00:00.5+01:00"}},
        {"spec.rebalance": {"requestedAt": "1970-01-01T00:00:00Z"}},
    ),
    RuleCase(USER, "clusterRef cannot", {f"{_AUTHENTICATION}.type": "oauth"}, {"spec.clusterRef": "other"}, before={}),
    RuleCase(
        USER,
        "userName cannot be changed",
        {"spec.userName": "Alice", f"{_AUTHENTICATION}.type": "oauth"},
        {"spec.userName": "alice"},
        before={"spec.userName": "Alice"},
    ),
    RuleCase(
        USER, "userName cannot be added", {f"{_AUTHENTICATION}.type": "oauth"}, {"spec.userName": "alice"}, before={}
    ),
    RuleCase(USER, "userName has no CN=", {"spec.userName": "cn=alice"}, {"spec.userName": "CN=alice"}),
    RuleCase(USER, "ANONYMOUS is every client", {"spec.userName": "anonymous"}, {"spec.userName": "ANONYMOUS"}),
    RuleCase(
        USER,
        "authentication: password is only",
        {_AUTHENTICATION: {"type": "scram-sha-512", "password": _PASSWORD}},
        {_AUTHENTICATION: {"type": "tls", "password": _PASSWORD}},
    ),
    RuleCase(
        USER,
        "authentication: rotateAfterDays is only",
        {_AUTHENTICATION: {"type": "tls", "rotateAfterDays": 30}},
        {_AUTHENTICATION: {"type": "tls-external", "rotateAfterDays": 30}},
    ),
    RuleCase(
        USER,
        "authentication: rotateAfterDays is for a generated",
        {_AUTHENTICATION: {"type": "scram-sha-512", "password": _PASSWORD}},
        {_AUTHENTICATION: {"type": "scram-sha-512", "password": _PASSWORD, "rotateAfterDays": 30}},
    ),
    RuleCase(
        USER,
        "acls: a resource has a name",
        {"spec.authorization": _acl(type="cluster")},
        {"spec.authorization": _acl(type="topic")},
    ),
    RuleCase(MOUNT, "clusterRef cannot", {"spec.ttlSeconds": 60}, {"spec.clusterRef": "other"}, before={}),
    RuleCase(MOUNT, "source: give exactly one", {"spec.source": _RETIRED}, {"spec.source": {}}),
    RuleCase(
        MOUNT,
        "source: give exactly one",
        {"spec.source": {"snapshot": {"name": "june"}}},
        {"spec.source": {"topics": {"names": ["a"]}, "snapshot": {"name": "june"}}},
    ),
    RuleCase(
        MOUNT, "source cannot", {"spec.ttlSeconds": 60}, {"spec.source": {"topics": {"names": ["other"]}}}, before={}
    ),
    RuleCase(
        MOUNT,
        "source.topics: fromTime",
        {
            "spec.source.topics": {
                "names": ["a"],
                "fromTime": "2013-01-01T00:00:00Z",
                "untilTime": "2013-02-01T00:00:00Z",
            }
        },
        {
            "spec.source.topics": {
                "names": ["a"],
                "fromTime": "2013-02-01T00:00:00Z",
                "untilTime": "2013-01-01T00:00:00Z",
            }
        },
    ),
    RuleCase(
        MOUNT, "ttlSeconds: not allowed", {"spec.ttlSeconds": 60}, {"spec.source": _RETIRED, "spec.ttlSeconds": 60}
    ),
)


def rule_messages(schema: Mapping[str, Any]) -> Iterator[str]:
    """The sentences of all CEL rules of a schema, at whatever depth."""
    for key, value in schema.items():
        if key == "x-kubernetes-validations":
            yield from (one["message"] for one in value)
        elif isinstance(value, dict):
            yield from rule_messages(value)
