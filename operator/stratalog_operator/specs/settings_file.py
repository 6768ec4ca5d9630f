"""The settings file that all processes of a cluster read at their start.

Pure.
"""

from __future__ import annotations

from typing import Final

from stratalog_operator.specs.objects import Cluster, Manifest, digest, wanted
from stratalog_operator.specs.pods import ROLES_FILE, TOKEN_FILE

ANNOTATION_CONFIG_HASH: Final = "stratalog.dev/config-hash"
ANNOTATION_SCHEME: Final = "stratalog.dev/scheme"
"""What Prometheus asks the admin port by (the chart's PodMonitor)."""
FILE_NAME: Final = "stratalog.conf"


def settings_text(cluster: Cluster) -> str:
    """Sorted KEY=VALUE lines: the operator's settings, and the user's, which cannot include one of the operator's."""
    spec = cluster.spec
    own = {
        "http.allowed.hosts": f".{cluster.namespace}.svc.{spec.cluster_domain},.{cluster.namespace}.svc",
        "auth.token.file": TOKEN_FILE,
        "default.replication.factor": str(spec.defaults.replication_factor),
        "min.insync.replicas": str(spec.defaults.min_insync_replicas),
        "retire.verify.interval.ms": str(spec.scale_in.verify_interval_seconds * 1000),
    }
    if spec.meta.role_tokens_secret_ref is not None:
        own["auth.role.tokens.file"] = ROLES_FILE
    if spec.defaults.segment_bytes is not None:
        own["log.segment.bytes"] = str(spec.defaults.segment_bytes)
    if spec.defaults.segment_max_age_seconds is not None:
        own["log.roll.ms"] = str(spec.defaults.segment_max_age_seconds * 1000)
    return "".join(f"{key}={value}\n" for key, value in sorted({**spec.config, **own}.items()))


def config_map(cluster: Cluster) -> Manifest:
    body: Manifest = {"data": {FILE_NAME: settings_text(cluster)}}
    return wanted("v1", "ConfigMap", cluster.config_name, cluster, {}, body, owner=cluster.owner())


def restart_annotations(cluster: Cluster, *words: str) -> dict[str, str]:
    """What makes a pod another one: the settings, which are read at the start alone, and a person's word."""
    asked = "/".join(word for word in (cluster.restart, *words) if word)
    found = {ANNOTATION_CONFIG_HASH: digest(settings_text(cluster))}
    if cluster.has_internal_tls:
        found[ANNOTATION_SCHEME] = cluster.http_scheme
    return {**found, "stratalog.dev/restart": asked} if asked else found
