"""The meta service: several instances, one of them the leader, each found by its name.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog_operator.resources.cluster import ExternalEtcd
from stratalog_operator.specs.certificate_secrets import ETCD_CLIENT, META
from stratalog_operator.specs.client_security import add_certificates, internal_settings
from stratalog_operator.specs.cold_tier import (
    add_key_file,
    bucket_url,
    store_environment,
    store_identity,
    store_labels,
)
from stratalog_operator.specs.etcd import CERTIFICATES_FOLDER, etcd_certificates, members
from stratalog_operator.specs.objects import (
    ADMIN_PORT,
    ETCD_CLIENT_PORT,
    META_PORT,
    Cluster,
    Manifest,
    pod_template,
    selector,
    wanted,
)
from stratalog_operator.specs.pods import (
    ADMIN_SETTINGS,
    POD_NAME,
    commands_environment,
    container,
    pod_spec,
    probes,
    shared_volumes,
    spread,
)
from stratalog_operator.specs.settings_file import restart_annotations

_USER_FOLDER: Final = "/etc/stratalog/etcd-user"


def meta_objects(cluster: Cluster) -> list[Manifest]:
    labels = selector(cluster, "meta")
    service: Manifest = {
        "spec": {
            "clusterIP": "None",
            # An instance names itself to the others before it is ready.
            "publishNotReadyAddresses": True,
            "selector": {**labels},
            "ports": [
                {"name": "meta", "port": META_PORT, "targetPort": "meta"},
                {"name": "admin", "port": ADMIN_PORT, "targetPort": "admin"},
            ],
        }
    }
    instances: Manifest = {
        "spec": {
            "serviceName": cluster.meta_name,
            "replicas": cluster.spec.meta.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {**labels}},
            "template": pod_template({**labels, **store_labels(cluster)}, restart_annotations(cluster), _pod(cluster)),
        }
    }
    return [
        wanted("v1", "Service", cluster.meta_name, cluster, labels, service, owner=cluster.owner()),
        wanted("apps/v1", "StatefulSet", cluster.meta_name, cluster, labels, instances, owner=cluster.owner()),
    ]


def store_url(cluster: Cluster) -> str:
    """Where the metadata are, as `--store` takes it."""
    meta = cluster.spec.meta
    if meta.external is not None:
        prefix = meta.external.prefix.strip("/")
        return f"etcd://{','.join(meta.external.endpoints)}" + (f"/{prefix}" if prefix else "")
    assert meta.etcd is not None, "the definition asks for exactly one of the two"
    return "etcd://" + ",".join(f"{host}:{ETCD_CLIENT_PORT}" for host in members(cluster, meta.etcd))


def _pod(cluster: Cluster) -> Manifest:
    own = cluster.host(cluster.meta_name, "$(POD_NAME)")
    command = [
        *("stratalog", "meta", "start", "--listen", f"0.0.0.0:{META_PORT}", "--store", store_url(cluster)),
        *ADMIN_SETTINGS,
        *("--set", f"advertised.listeners={own}:{META_PORT}"),
    ]
    for key, value in internal_settings(cluster, is_node=False).items():
        command += ["--set", f"{key}={value}"]
    bucket = bucket_url(cluster)
    if bucket is not None:
        command += ["--bucket", bucket]
    volumes, mounts = shared_volumes(cluster, is_meta=True)
    add_key_file(cluster, volumes, mounts)
    if cluster.has_internal_tls:
        add_certificates(cluster, META, volumes, mounts)
    env = [POD_NAME, *commands_environment(cluster, is_meta=True), *store_environment(cluster)]
    external = cluster.spec.meta.external
    if external is not None:
        _add_access(external, volumes, mounts, env)
    elif cluster.has_etcd_tls:
        for variable, file in {"CA": "ca.crt", "CERT": "tls.crt", "KEY": "tls.key"}.items():
            env.append({"name": f"STRATALOG_ETCD_{variable}", "value": f"{CERTIFICATES_FOLDER}/{file}"})
        volumes.append({"name": "etcd-client", "secret": etcd_certificates(cluster, ETCD_CLIENT)})
        mounts.append({"name": "etcd-client", "mountPath": CERTIFICATES_FOLDER, "readOnly": True})
    made = container(
        cluster,
        "meta",
        command,
        resources=cluster.spec.meta.resources,
        ports={"meta": META_PORT, "admin": ADMIN_PORT},
        mounts=mounts,
        env=env,
        probes=probes(cluster),
    )
    apart = spread(selector(cluster, "meta"), "topology.kubernetes.io/zone", "kubernetes.io/hostname")
    return pod_spec(cluster, made, volumes, apart, grace_seconds=30, more=store_identity(cluster))


def _add_access(external: ExternalEtcd, volumes: list[Manifest], mounts: list[Manifest], env: list[Manifest]) -> None:
    """Who we are to an etcd that asks, by files and environment: a command line is seen by all."""
    if external.credentials_secret_ref is not None:
        secret = external.credentials_secret_ref
        env.append({"name": "STRATALOG_ETCD_USER", "valueFrom": {"secretKeyRef": {"name": secret, "key": "username"}}})
        env.append({"name": "STRATALOG_ETCD_PASSWORD_FILE", "value": f"{_USER_FOLDER}/password"})
        keys: list[Manifest] = [{"key": "password", "path": "password"}]
        volumes.append({"name": "etcd-user", "secret": {"secretName": secret, "items": [*keys], "defaultMode": 0o440}})
        mounts.append({"name": "etcd-user", "mountPath": _USER_FOLDER, "readOnly": True})
    _add_files(external.ca_secret_ref, "etcd-ca", {"CA": "ca.crt"}, volumes, mounts, env)
    of_client = {"CERT": "tls.crt", "KEY": "tls.key"}
    _add_files(external.client_tls_secret_ref, "etcd-client", of_client, volumes, mounts, env)


def _add_files(
    secret: str | None,
    name: str,
    files: Mapping[str, str],
    volumes: list[Manifest],
    mounts: list[Manifest],
    env: list[Manifest],
) -> None:
    """These keys of a Secret as files, each named by a variable `STRATALOG_ETCD_…`. No others: a Secret with a `ca.crt`
    may have the key of that authority, too."""
    if secret is None:
        return
    folder = f"/etc/stratalog/{name}"
    for variable, file in files.items():
        env.append({"name": f"STRATALOG_ETCD_{variable}", "value": f"{folder}/{file}"})
    items: list[Manifest] = [{"key": file, "path": file} for file in files.values()]
    volumes.append({"name": name, "secret": {"secretName": secret, "items": [*items], "defaultMode": 0o440}})
    mounts.append({"name": name, "mountPath": folder, "readOnly": True})
