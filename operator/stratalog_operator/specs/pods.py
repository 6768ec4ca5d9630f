"""What all pods have in common: restricted security, probes, spread, the settings file, and which tokens they hold.

Probes: a start may take long (a tail is scanned, a log healed); alive is that the loop answers; ready is that this
process serves, never that the cluster is well, which would keep away the very pods that heal it.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from stratalog_operator.resources.schema import Resources
from stratalog_operator.specs.client_security import AUTHORITIES_FOLDER, CERTIFICATE_FOLDER
from stratalog_operator.specs.objects import ADMIN_PORT, Cluster, Manifest
from stratalog_operator.specs.role_hashes import OF_META, OF_NODES, role_hashes_secret

USER_ID: Final = 10001
SETTINGS_FILE: Final = "/etc/stratalog/settings/stratalog.conf"
TOKEN_FOLDER: Final = "/etc/stratalog/token"
TOKEN_FILE: Final = f"{TOKEN_FOLDER}/token"
"""The key `token` of the Secret. Mounted whole, never by `subPath`: only so it changes where the Secret does."""
ROLES_FOLDER: Final = "/etc/stratalog/roles"
ROLES_FILE: Final = f"{ROLES_FOLDER}/roles"
"""Tokens of people and programs, mounted in the same way."""
START_SECONDS: Final = 3600
"""A start that takes longer than this is killed, and begins again where it was."""
START_POLL_SECONDS: Final = 1
"""A start of an empty node takes a second or two, and nothing is looked at for readiness before it has ended."""

POD_NAME: Final[Manifest] = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def pod_spec(
    cluster: Cluster,
    container: Manifest,
    volumes: Sequence[Manifest],
    spread: Sequence[Manifest],
    *,
    grace_seconds: int,
    tmp_size: str = "64Mi",
    more: Mapping[str, JsonValue] | None = None,
) -> Manifest:
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": tmp_size}}, *volumes],
        **(more or {}),
    }
    if spread:
        spec["topologySpreadConstraints"] = list(spread)
    if cluster.spec.image.pull_secrets and "imagePullSecrets" not in spec:
        spec["imagePullSecrets"] = [{"name": name} for name in cluster.spec.image.pull_secrets]
    return spec


def container(
    cluster: Cluster,
    name: str,
    command: Sequence[str],
    *,
    resources: Resources,
    ports: Mapping[str, int],
    mounts: Sequence[Manifest],
    env: Sequence[Manifest],
    probes: Mapping[str, JsonValue],
    image: str | None = None,
    pull_policy: str | None = None,
) -> Manifest:
    return {
        "name": name,
        "image": image or cluster.spec.image.reference,
        "imagePullPolicy": pull_policy or cluster.spec.image.pull_policy,
        "command": list(command),
        "env": list(env),
        "ports": [{"name": key, "containerPort": port} for key, port in ports.items()],
        "resources": {
            key: {**given} for key, given in (("requests", resources.requests), ("limits", resources.limits)) if given
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *mounts],
        **probes,
    }


def holds_token(cluster: Cluster, *, is_meta: bool) -> bool:
    """Whether a pod has the token of the cluster. Where the parts prove who they are by certificates, only the meta
    service knows it, for programs such as the pipeline: its pods hold the credentials of etcd, which open more, and at
    nodes the token opens no more than their certificate."""
    return is_meta or not cluster.has_internal_tls


def token_settings(cluster: Cluster) -> list[str]:
    """Of a node without the token, on its command line. The settings file is one for all, and pods of an earlier make,
    which have the token, read it when they start again."""
    if holds_token(cluster, is_meta=False):
        return []
    return ["--set", "auth.token.file=", "--set", f"auth.role.tokens.file={ROLES_FILE}"]


def commands_environment(cluster: Cluster, *, is_meta: bool = False) -> list[Manifest]:
    """For commands that a person runs in the pod; the processes have it in their settings. Commands show the token, or
    the certificate of the pod: a member that shows a token, too, has the rights of its certificate alone."""
    found = {}
    if has_token := holds_token(cluster, is_meta=is_meta):
        found["STRATALOG_TOKEN_FILE"] = TOKEN_FILE
    if cluster.has_internal_tls:
        found |= {
            "STRATALOG_ADMIN": f"https://localhost:{ADMIN_PORT}",
            "STRATALOG_CERTIFICATE_FOLDER": AUTHORITIES_FOLDER if has_token else CERTIFICATE_FOLDER,
        }
    return [{"name": name, "value": value} for name, value in found.items()]


def probes(cluster: Cluster) -> Manifest:
    """Of our own processes, on their admin port. Kubernetes checks no certificate there and shows none."""
    scheme: Manifest = {"scheme": "HTTPS"} if cluster.has_internal_tls else {}
    alive: Manifest = {"httpGet": {"path": "/healthz", "port": "admin", **scheme}}
    return {
        "startupProbe": {
            **alive,
            "periodSeconds": START_POLL_SECONDS,
            "failureThreshold": START_SECONDS // START_POLL_SECONDS,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {**alive, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "admin", **scheme},
            "periodSeconds": 2,
            "failureThreshold": 3,
            "timeoutSeconds": 5,
        },
    }


def spread(labels: Mapping[str, str], *keys: str) -> list[Manifest]:
    """Apart where that can be: a machine without the label would otherwise take nothing."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {**labels}},
        }
        for key in keys
    ]


def shared_volumes(cluster: Cluster, *, is_meta: bool = False) -> tuple[list[Manifest], list[Manifest]]:
    """The settings file and what opens the HTTP ports: volumes, and where they are mounted."""
    volumes: list[Manifest] = [{"name": "settings", "configMap": {"name": cluster.config_name}}]
    mounts: list[Manifest] = [{"name": "settings", "mountPath": SETTINGS_FILE.rsplit("/", 1)[0], "readOnly": True}]
    if holds_token(cluster, is_meta=is_meta):
        volumes.append({"name": "token", "secret": {"secretName": cluster.token_secret, "defaultMode": 0o440}})
        mounts.append({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True})
    roles = _roles(cluster, is_meta=is_meta)
    if roles is not None:
        volumes.append({"name": "roles", "secret": {**roles, "defaultMode": 0o440}})
        mounts.append({"name": "roles", "mountPath": ROLES_FOLDER, "readOnly": True})
    return volumes, mounts


def _roles(cluster: Cluster, *, is_meta: bool) -> Manifest | None:
    """Which Secret has the file of named tokens. None: the process has none."""
    given = cluster.spec.meta.role_tokens_secret_ref
    if not cluster.has_internal_tls:
        return None if given is None else {"secretName": given}
    if is_meta and given is None:
        return None
    items: list[JsonValue] = [{"key": OF_META if is_meta else OF_NODES, "path": ROLES_FILE.rsplit("/", 1)[1]}]
    return {"secretName": role_hashes_secret(cluster), "items": items}


ADMIN_SETTINGS: Final = ("--config", SETTINGS_FILE, "--set", f"metrics.listen=0.0.0.0:{ADMIN_PORT}")
