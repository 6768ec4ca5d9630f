"""What several parts of the plan ask of what is observed: which nodes stay, which leave, what is wanted of each.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeAlias

from stratalog.tls.issuing import CLOCKS_DIFFER
from stratalog_operator.plan.actions import Apply, Offer
from stratalog_operator.plan.observed import Observed, SeenCluster, SeenNode, SeenPool
from stratalog_operator.plan.ownership import owns
from stratalog_operator.resources.conditions import OF_KIND, ConditionStatus, ConditionType
from stratalog_operator.resources.names import (
    ANNOTATION_PAUSED,
    ANNOTATION_RESTART,
    API_VERSION,
    GROUP,
    LABEL_NODE_ID,
    LABEL_POOL,
)
from stratalog_operator.specs.certificate_secrets import OF_ETCD
from stratalog_operator.specs.client_services import why_ports_do_not_fit
from stratalog_operator.specs.node import NodeIdentity, node_name
from stratalog_operator.specs.objects import Cluster, EtcdPeers, Manifest, wanted

Word: TypeAlias = tuple[ConditionStatus, str, str]
"""Of a condition: status, reason, message."""
DELETION_SECONDS: Final = 300
"""How long a deletion waits for a meta service that does not answer."""
SILENT_SECONDS: Final = 30
"""A meta service that does not answer for this long blocks no retirement: it may be electing a leader."""
_TRUST_LETTERS: Final = 16
ANNOTATION_CHOSEN: Final = f"{GROUP}/chosen-by-pool"
"""On a StorageNode that a pool chose to leave: it may be taken back by scaling up. A person's wish may not."""


def cluster_of(seen: Observed) -> Cluster:
    cluster = replace(
        cluster_in(seen.namespace, seen.cluster),
        operator_namespace=seen.operator_namespace,
        etcd_peers=etcd_peers(seen.cluster, has_claims=bool(seen.etcd_claims)),
    )
    if not cluster.has_etcd_tls or seen.certificates is None:
        return cluster
    authority = seen.certificates.etcd
    newest = None if authority is None else authority.next_issuer or authority.issuer
    # A pod that names a file which its Secret does not have would not start.
    is_whole = all(holder in seen.certificates.leaves for holder in OF_ETCD)
    is_usable = seen.certificates.is_published and is_whole and authority is not None and not authority.trouble
    if newest is None or not is_usable:
        return replace(cluster, is_etcd_held=True)
    return replace(cluster, etcd_trust=newest.fingerprint[:_TRUST_LETTERS])


def cluster_in(namespace: str, one: SeenCluster) -> Cluster:
    restart = one.annotations.get(ANNOTATION_RESTART, "")
    return Cluster(one.name, namespace, one.uid, one.spec, restart, has_internal_tls(one), has_etcd_tls(one))


def has_internal_tls(one: SeenCluster) -> bool:
    """Decided when the cluster is made, and kept: a port speaks TLS or plain text, so while pods restart one after the
    other, those of the one kind would not reach those of the other."""
    decided = one.status.internal_protocol
    if decided:
        return decided == "SSL"
    return one.spec.asks_for_internal_tls and not one.status.observed_generation


def has_etcd_tls(one: SeenCluster) -> bool:
    """Decided when the cluster is made, and kept, for the same reason. One that an earlier operator made has none."""
    decided = one.status.etcd_protocol
    if decided:
        return decided == "SSL"
    return has_internal_tls(one) and one.spec.meta.etcd is not None and not one.status.observed_generation


def etcd_peers(one: SeenCluster, *, has_claims: bool) -> EtcdPeers:
    """What the members of etcd speak with each other. A cluster whose volumes may have the log of earlier members, of
    this cluster or of one before, changes over: only the log says under which URLs they reach each other."""
    if not has_etcd_tls(one):
        return EtcdPeers.PLAINTEXT
    decided = one.status.etcd_peer_protocol
    is_new = not decided and not has_claims and not one.status.observed_generation
    return EtcdPeers.SSL if is_new or decided == EtcdPeers.SSL.value else EtcdPeers.MIGRATING


def identity_of(node: SeenNode) -> NodeIdentity:
    spec = node.spec
    return NodeIdentity(spec.node_id, spec.pool_ref, spec.zone, spec.restart_requested_at or "")


def is_released(seen: Observed, node_id: int) -> bool:
    """Past the point of no return, by the meta service's word."""
    record = None if seen.meta is None else seen.meta.retirement(node_id)
    return record is not None and record.retirement.step.is_released


def staying(seen: Observed, pool: SeenPool) -> list[SeenNode]:
    """Nodes of the pool that have not left and are not asked to leave. One whose object is being deleted has not left:
    the object is made again, and until then another program's finalizer may hold it for long."""
    return [node for node in of_pool(seen, pool) if not node.spec.retire and not is_released(seen, node.spec.node_id)]


def of_pool(seen: Observed, pool: SeenPool) -> list[SeenNode]:
    return sorted((node for node in seen.nodes if node.spec.pool_ref == pool.name), key=lambda node: node.spec.node_id)


def serves(seen: Observed, node: SeenNode) -> bool:
    """By what Kubernetes knows of its pod."""
    pod = seen.pod_named(f"{node_name(seen.cluster.name, node.spec.pool_ref, node.spec.node_id)}-0")
    return pod is not None and pod.is_ready and not pod.is_leaving


def storage_node(
    cluster: Cluster, pool: str, node_id: int, zone: str | None, *, retires: bool = False, restart: str | None = None
) -> Manifest:
    """The StorageNode of a node. Without `retires` it does not set `spec.retire`, so a person's value stays."""
    spec: Manifest = {"clusterRef": cluster.name, "poolRef": pool, "nodeId": node_id}
    if zone is not None:
        spec["zone"] = zone
    if retires:
        spec["retire"] = True
    name = node_name(cluster.name, pool, node_id)
    labels = {"stratalog.dev/cluster": cluster.name, LABEL_POOL: pool, LABEL_NODE_ID: str(node_id)}
    annotations = {ANNOTATION_CHOSEN: "true"} if retires else {}
    return wanted(
        API_VERSION,
        "StorageNode",
        name,
        cluster,
        labels,
        {"spec": spec},
        owner=cluster.owner(),
        annotations=annotations,
    )


def complete(kind: str, words: Mapping[ConditionType, Word]) -> dict[ConditionType, Word]:
    """All conditions of the kind, in their order."""
    return {one: words.get(one, (ConditionStatus.UNKNOWN, "NotLookedAt", "")) for one in OF_KIND[kind]}


def seconds_since(since: str, now: str) -> int:
    return int((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds())


def why_no_time(seen: Observed) -> str:
    """Why nothing is renewed or replaced by its age, in words; empty where the clock of this process is that of the
    Kubernetes API server. One that is ahead would issue certificates that are not valid yet, and replace an authority
    that has not expired, at once and for good."""
    ahead = seen.clock_ahead_seconds
    if abs(ahead) <= CLOCKS_DIFFER.total_seconds():
        return ""
    where = "ahead of" if ahead > 0 else "behind"
    return (
        f"the clock of the operator is {abs(ahead):,} s {where} that of the Kubernetes API server: no certificate is "
        "issued and nothing is renewed until they agree"
    )


def cluster_id(seen: Observed) -> str:
    """Empty until the meta service has answered once."""
    return seen.cluster.status.cluster_id or ("" if seen.meta is None else seen.meta.cluster_id)


def is_paused(seen: Observed) -> bool:
    return seen.cluster.spec.paused or seen.cluster.annotations.get(ANNOTATION_PAUSED) == "true"


def why_blind(seen: Observed) -> str:
    """Why no node, volume or pod may be changed: an object that says what they are for cannot be read. Which volumes
    are free, and how many nodes there are, rests on all pools, nodes and mounts; a TopicStorage decides only on its
    topic, a StorageUser on its user, an ArchiveJob on its runs."""
    apart = ("TopicStorage", "StorageUser", "ArchiveJob")
    return next((one.words for one in seen.unread if one.kind not in apart), "")


def why_invalid(seen: Observed) -> str:
    """What the definitions cannot see."""
    one = seen.cluster
    if one.spec.asks_for_internal_tls != has_internal_tls(one):
        runs, asked = ("TLS", "plain text") if has_internal_tls(one) else ("plain text", "TLS")
        return (
            f"spec.tls.internal: the parts of this cluster speak {runs} with each other and continue to do so. Pods "
            f"that restart one after the other cannot change to {asked}: delete the StorageCluster, whose volume "
            "claims stay, and make it again"
        )
    return why_ports_do_not_fit(cluster_of(seen), (node.spec.node_id for node in seen.nodes))


def apply_missing(seen: Observed, manifests: Sequence[Manifest], why: str) -> Offer:
    """Applies the manifests whose object does not exist, differs, or was changed by another writer."""
    offer = Offer()
    for manifest in manifests:
        action = Apply(manifest, why)
        fields = seen.fields.get(action.key)
        if seen.hashes.get(action.key) != wanted_hash(manifest):
            offer.actions.append(action)
        elif fields is not None and not owns(fields, manifest):
            offer.actions.append(Apply(manifest, "a field that the operator owns was changed"))
    return offer


def wanted_hash(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    assert isinstance(metadata, dict), "made by `wanted`"
    annotations = metadata["annotations"]
    assert isinstance(annotations, dict), "made by `wanted`"
    return str(annotations[f"{GROUP}/wanted-hash"])
