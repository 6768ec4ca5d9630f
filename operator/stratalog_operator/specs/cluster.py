"""All that a cluster wants beside its storage nodes.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from stratalog_operator.specs.client_services import inside_services, outside_bootstrap
from stratalog_operator.specs.etcd import etcd_objects
from stratalog_operator.specs.meta import meta_objects
from stratalog_operator.specs.network_policies import network_policies
from stratalog_operator.specs.node import outside_listeners
from stratalog_operator.specs.objects import Cluster, Manifest, selector, wanted
from stratalog_operator.specs.settings_file import config_map


def cluster_objects(cluster: Cluster) -> list[Manifest]:
    """All objects of a cluster in the order of their use: settings and Services before the pods that need them."""
    made = [config_map(cluster), *inside_services(cluster)]
    made += [outside_bootstrap(cluster, listener) for listener in outside_listeners(cluster)]
    etcd = cluster.spec.meta.etcd
    if etcd is not None:
        service, members = etcd_objects(cluster, etcd)
        made += [service, *([] if cluster.is_etcd_held else [members]), budget(cluster, "etcd")]
    made += [*meta_objects(cluster), budget(cluster, "meta")]
    if cluster.spec.pod_disruption_budget.enabled:
        made.append(budget(cluster, "node"))
    if cluster.spec.network_policy.enabled:
        made += network_policies(cluster)
    return made


def budget(cluster: Cluster, part: str) -> Manifest:
    """At most one away at a time; one that is not well anyway holds up no drain."""
    labels = selector(cluster, part)
    body: Manifest = {
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {**labels}},
        }
    }
    name = f"{cluster.name}-{part}"
    return wanted("policy/v1", "PodDisruptionBudget", name, cluster, labels, body, owner=cluster.owner())


def token_secret(cluster: Cluster, token: str) -> Manifest:
    """Made once, where the user names no Secret; `token` is chosen by who applies it, and never changed here."""
    body: Manifest = {"type": "Opaque", "stringData": {"token": token}}
    return wanted("v1", "Secret", cluster.token_secret, cluster, {}, body, owner=cluster.owner())
