"""Scenes whose wanted objects are kept as YAML: `python -m support.golden_specs` writes them again.

A person must read the difference before committing it: that is the other half of the test.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from stratalog_operator.resources.archive_job import ArchiveJobSpec
from stratalog_operator.resources.cluster import Etcd, StorageClusterSpec
from stratalog_operator.resources.pool import StorageNodePoolSpec
from stratalog_operator.specs.archive_job import cron_job, requested_job
from stratalog_operator.specs.client_services import inside_services, outside_bootstrap, outside_of_node
from stratalog_operator.specs.cluster import cluster_objects, token_secret
from stratalog_operator.specs.etcd import Formation, etcd_config_map, etcd_objects
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.network_policies import network_policies
from stratalog_operator.specs.node import NodeIdentity, node_claim, node_set, outside_listeners
from stratalog_operator.specs.objects import Cluster, EtcdPeers, Manifest
from stratalog_operator.specs.volume import volume_objects

_GOLDEN: Final = Path(__file__).parents[1] / "unit" / "operator" / "golden"
_COLD: Final = {
    "bucket": "flights",
    "prefix": "main",
    "endpoint": "http://s3.store.svc:7070",
    "credentialsSecretRef": "store",
}
_SMALL: Final = {"clusterRef": "main", "storage": {"size": "10Gi"}}


def cluster(spec: Mapping[str, Any] | None = None, *, restart: str = "") -> Cluster:
    """One that is new, and so has internal TLS where it asks for it."""
    read = StorageClusterSpec.model_validate({"meta": {"etcd": {}}, **(spec or {})})
    has_tls = read.asks_for_internal_tls
    has_etcd_tls = has_tls and read.meta.etcd is not None
    peers = EtcdPeers.SSL if has_etcd_tls else EtcdPeers.PLAINTEXT
    return Cluster("main", "data", "uid-of-main", read, restart, has_tls, has_etcd_tls, peers)


def pool(changes: Mapping[str, Any] | None = None) -> StorageNodePoolSpec:
    return StorageNodePoolSpec.model_validate({**_SMALL, **(changes or {})})


def job(action: str, **more: Any) -> ArchiveJobSpec:
    return ArchiveJobSpec.model_validate({"clusterRef": "main", "action": action, **more})


def jobs() -> list[Manifest]:
    """Of each action, with the most and with the least that can be said."""
    stored = cluster({"coldTier": _COLD, "image": {"repository": "example/stratalog", "tag": "0.4.2"}})
    inner = cluster({"coldTier": _COLD, "tls": {"internal": True}, "meta": {"etcd": {}, "tokenSecretRef": "mine"}})
    tables = {"to": "s3://tables/main", "kind": "avro", "format": "delta", "confluent": True, "onGap": "report",
              "schemaConfigMapRef": "schemas"}  # fmt: skip
    archive = job(
        "Archive",
        topics=["b", "a"],
        archive=tables,
        schedule="30 2 * * 1-5",
        timeZone="Europe/Berlin",
        concurrencyPolicy="Replace",
        deadlineSeconds=3600,
        retries=3,
        image={"repository": "example/own", "tag": "7", "pullPolicy": "Always", "pullSecrets": ["pull"]},
        resources={"requests": {"cpu": 2, "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        scratchSize="50Gi",
        credentialsSecretRef="job-store",
        nodeSelector={"disk": "nvme"},
        tolerations=[{"key": "batch", "operator": "Exists"}],
    )
    compact = job("Compact", compact={"pack": True, "objectBytes": 134217728}, schedule="@daily", suspend=True)
    verify = job("Verify", topics=["flights"], spark={"cores": 0})
    kafka = {"to": "kafka-1:9092,kafka-2:9092", "format": "kafka", "clientConfigSecretRef": "login"}
    export = job("Export", export=kafka, spark={"master": "spark://spark-1:7077"})
    when = "2013-01-01T00:00:00Z"
    return [
        cron_job(stored, "cluster-1", "nightly", "uid-of-nightly", archive),
        cron_job(inner, "cluster-1", "a" * 63, "uid-of-a", compact),
        requested_job(stored, "cluster-1", "scrub", "uid-of-scrub", verify, when),
        requested_job(stored, "cluster-1", "b" * 63, "uid-of-b", export, when),
    ]


def scenes() -> dict[str, list[Manifest]]:
    """File name to objects."""
    small, node, seventh = cluster(), NodeIdentity(1, "hot"), NodeIdentity(7, "hot")
    rich = cluster(
        {
            "image": {"repository": "example/stratalog", "tag": "0.4.2", "pullSecrets": ["pull"]},
            "meta": {
                "external": {
                    "endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"],
                    "prefix": "/main/",
                    "credentialsSecretRef": "etcd-user",
                    "caSecretRef": "etcd-ca",
                    "clientTlsSecretRef": "etcd-client",
                },
                "tokenSecretRef": "mine",
                "roleTokensSecretRef": "people",
                "resources": {"requests": {"cpu": "100m"}},
            },
            "coldTier": _COLD,
            "defaults": {"replicationFactor": 2, "minInsyncReplicas": 1, "segmentBytes": 1048576},
            "config": {"log.level": "debug"},
            "podDisruptionBudget": {"enabled": False},
        },
        restart="monday",
    )
    wide = {
        "zones": ["a", "b"],
        "storage": {"size": "100Gi", "className": "fast"},
        "resources": {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "storage", "operator": "Exists", "effect": "NoSchedule"}],
    }
    zoned = NodeIdentity(12, "hot", zone="b", restart="tuesday")
    outside = cluster(
        {
            "listeners": [
                {"name": "internal", "port": 9092},
                {"name": "outside", "port": 9094, "type": "nodeport", "firstNodePort": 30092},
                {
                    "name": "far",
                    "port": 9095,
                    "type": "nodeport",
                    "firstNodePort": 31092,
                    "advertisedHost": "kafka.example.org",
                },
            ]
        }
    )
    secure = cluster(
        {
            "listeners": [
                {"name": "internal", "port": 9092},
                {"name": "users", "port": 9093, "tls": True, "authentication": {"type": "scram-sha-512"}},
                {
                    "name": "outside",
                    "port": 9094,
                    "type": "nodeport",
                    "firstNodePort": 30092,
                    "tls": True,
                    "authentication": {"type": "scram-sha-512"},
                },
            ],
            "tls": {"certificateSecretRef": "main-certificate"},
            "authorization": {"type": "simple", "superUsers": ["admin", "CN=backup,O=example"]},
        }
    )
    inner = cluster({"tls": {"internal": True}})
    by_file = cluster({"coldTier": {"type": "gcs", "bucket": "flights", "credentialsSecretRef": "store"}})
    known = {"type": "azure", "bucket": "flights", "account": "acme", "prefix": "main", "serviceAccountName": "log"}
    by_identity = cluster({"coldTier": known})
    return {
        "parts_that_speak_tls.yaml": [
            meta_objects(inner)[-1],
            etcd_config_map(inner, Etcd(), Formation()),
            etcd_objects(inner, Etcd())[-1],
            node_set(inner, pool(), node),
            volume_objects(inner, pool(), seventh, "main-hot-7", "uid-of-mount")[-1],
        ],
        "smallest_cluster.yaml": [*cluster_objects(small), token_secret(small, "made-up")],
        "node_of_the_smallest_cluster.yaml": [node_claim(small, pool(), node), node_set(small, pool(), node)],
        "a_member_of_etcd_joins_again.yaml": [
            etcd_config_map(small, Etcd(), Formation(is_formed=True, joining={1: (0, 1, 2)}))
        ],
        "cluster_over_an_etcd_of_its_own.yaml": cluster_objects(rich),
        "node_in_a_zone.yaml": [node_claim(rich, pool(wide), zoned), node_set(rich, pool(wide), zoned)],
        "listeners_for_clients_outside.yaml": [
            *(outside_bootstrap(outside, listener) for listener in outside_listeners(outside)),
            *(outside_of_node(outside, listener, seventh, "uid-of-node") for listener in outside_listeners(outside)),
            node_set(outside, pool(), seventh),
        ],
        "cold_tier_at_google.yaml": [meta_objects(by_file)[-1], node_set(by_file, pool(), node)],
        "cold_tier_at_azure.yaml": [meta_objects(by_identity)[-1], node_set(by_identity, pool(), node)],
        "network_policies.yaml": network_policies(replace(secure, operator_namespace="operators")),
        "listeners_with_tls_and_passwords.yaml": [*inside_services(secure), node_set(secure, pool(), node)],
        "archive_jobs.yaml": jobs(),
        "retired_volume.yaml": volume_objects(rich, pool(wide), zoned, "main-hot-12", "uid-of-mount"),
    }


def text_of(objects: list[Manifest]) -> str:
    apart = json.loads(json.dumps(objects))  # what is shared would be written as anchors
    return yaml.safe_dump_all(apart, sort_keys=False, width=120, allow_unicode=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, objects in scenes().items():
        (folder / name).write_text(text_of(objects), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m support.golden_specs")
    parser.add_argument("folder", nargs="?", type=Path, default=_GOLDEN)
    main(parser.parse_args().folder)
