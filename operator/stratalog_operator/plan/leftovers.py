"""What was wanted and is not any more: ports of a listener that was taken out, a disruption budget or a NetworkPolicy
that was turned off.

Only what the operator itself applied, and only kinds that hold nothing.

Pure. Source: docs/operator.md section 5.
"""

from __future__ import annotations

from typing import Final

from stratalog_operator.plan.actions import Apply, DeleteObject, Offer
from stratalog_operator.plan.observed import Observed
from stratalog_operator.plan.scope import cluster_of, identity_of, why_invalid
from stratalog_operator.specs.client_services import outside_of_node
from stratalog_operator.specs.cluster import cluster_objects
from stratalog_operator.specs.node import outside_listeners

_KINDS: Final = ("Service", "PodDisruptionBudget", "NetworkPolicy")
_OF_VOLUMES: Final = "-vol"
"""Their Services belong to a ReadOnlyMount, and go with it."""


def leftovers(seen: Observed) -> Offer:
    if why_invalid(seen):
        return Offer()
    cluster = cluster_of(seen)
    wanted = {Apply(one, "").key for one in cluster_objects(cluster)}
    for node in seen.nodes:
        for listener in outside_listeners(cluster):
            wanted.add(Apply(outside_of_node(cluster, listener, identity_of(node), node.uid), "").key)
    offer = Offer()
    for key, applied in seen.hashes.items():
        kind, name = key
        if kind in _KINDS and applied and key not in wanted and not name.endswith(_OF_VOLUMES):
            uid = seen.uids.get(key)
            if uid is not None:
                offer.actions.append(DeleteObject(kind, name, uid, "the spec does not want it any more"))
    return offer
