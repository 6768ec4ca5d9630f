"""When the trust in former authorities of a cluster ends: once every pod that shows certificates of the cluster has
been seen to show one of the authority that issues now. Time alone ends it only where the former one has expired.

A certificate of a former authority, or one that was issued with its stolen key, is accepted until then. Of clients and
of etcd no pod proves what it shows, so their former authorities stay.

Pure. Source: docs/kubernetes-security.md.
"""

from __future__ import annotations

from typing import Final

from stratalog_operator.plan.observed import Observed, SeenPod
from stratalog_operator.plan.scope import cluster_of
from stratalog_operator.specs.certificate_secrets import OF_ETCD

_WITHOUT: Final = ("etcd", "job")
"""Parts whose pods show none of its certificates."""


def pods_to_prove(seen: Observed) -> tuple[SeenPod, ...]:
    """Those that have to be asked what they show. Empty: no former authority can be given up now.

    All pods of the cluster count but those that show no certificate of this authority, and all that its StatefulSets
    are to run: one that is away may come back with the files that it had. A pod that is made later mounts the present
    ones."""
    cluster, there = cluster_of(seen), seen.certificates
    if not cluster.has_internal_tls or there is None or there.trouble or not there.is_published:
        return ()
    authority = there.authority
    issuer = authority.issuer
    is_settled = authority.next_issuer is None and not authority.is_next_damaged
    if issuer is None or not authority.former or not is_settled:
        return ()
    of_parts = [leaf for holder, leaf in there.leaves.items() if holder not in OF_ETCD]
    if not of_parts or any(leaf.issuer != issuer.fingerprint for leaf in of_parts):
        return ()
    pods = [pod for pod in seen.pods if pod.part not in _WITHOUT]
    sets = [one for one in seen.sets if one.name != cluster.etcd_name]
    wanted = {f"{one.name}-{number}" for one in sets for number in range(one.replicas)}
    if not wanted <= {pod.name for pod in pods}:
        return ()
    return tuple(pods) if all(pod.is_ready and not pod.is_leaving and pod.address for pod in pods) else ()


def may_drop_former(seen: Observed) -> bool:
    """Whether every one of them was seen, in this pass, to show a certificate of the present authority."""
    pods = pods_to_prove(seen)
    return bool(pods) and all(pod.uid in seen.proven_pods for pod in pods)
