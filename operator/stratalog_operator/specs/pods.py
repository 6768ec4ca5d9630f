"""What all pods have in common: restricted security, probes, spread, the settings file and the token.

Probes: a start may take long (a tail is scanned, a log healed); alive is that the loop answers; ready is that this
process serves, never that the cluster is well, which would keep away the very pods that heal it.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from stratalog_operator.resources.schema import Resources
from stratalog_operator.specs.client_security import AUTHORITIES_FOLDER
from stratalog_operator.specs.objects import ADMIN_PORT, Cluster, Manifest

USER_ID: Final = 10001
SETTINGS_FILE: Final = "/etc/stratalog/settings/stratalog.conf"
TOKEN_FOLDER: Final = "/etc/stratalog/token"
TOKEN_FILE: Final = f"{TOKEN_FOLDER}/token"
"""The key `token` of the Secret. Mounted whole, never by `subPath`: only so it changes where the Secret does."""
ROLES_FOLDER: Final = "/etc/stratalog/roles"
ROLES_FILE: Final = f"{ROLES_FOLDER}/roles"
"""The key `roles` of the Secret with tokens of people and programs, mounted in the same way."""
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
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}, *volumes],
        **(more or {}),
    }
    if spread:
        spec["topologySpreadConstraints"] = list(spread)
    if cluster.spec.image.pull_secrets:
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
) -> Manifest:
    return {
        "name": name,
        "image": image or cluster.spec.image.reference,
        "imagePullPolicy": cluster.spec.image.pull_policy,
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


def commands_environment(cluster: Cluster) -> list[Manifest]:
    """For commands that a person runs in the pod; the processes have it in their settings."""
    found = {"STRATALOG_TOKEN_FILE": TOKEN_FILE}
    if cluster.has_internal_tls:
        found |= {
            "STRATALOG_ADMIN": f"https://localhost:{ADMIN_PORT}",
            "STRATALOG_CERTIFICATE_FOLDER": AUTHORITIES_FOLDER,
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


def shared_volumes(cluster: Cluster) -> tuple[list[Manifest], list[Manifest]]:
    """The settings file and the tokens: volumes, and where they are mounted."""
    volumes: list[Manifest] = [
        {"name": "settings", "configMap": {"name": cluster.config_name}},
        {"name": "token", "secret": {"secretName": cluster.token_secret, "defaultMode": 0o440}},
    ]
    mounts: list[Manifest] = [
        {"name": "settings", "mountPath": SETTINGS_FILE.rsplit("/", 1)[0], "readOnly": True},
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    roles = cluster.spec.meta.role_tokens_secret_ref
    if roles is not None:
        volumes.append({"name": "roles", "secret": {"secretName": roles, "defaultMode": 0o440}})
        mounts.append({"name": "roles", "mountPath": ROLES_FOLDER, "readOnly": True})
    return volumes, mounts


ADMIN_SETTINGS: Final = ("--config", SETTINGS_FILE, "--set", f"metrics.listen=0.0.0.0:{ADMIN_PORT}")
