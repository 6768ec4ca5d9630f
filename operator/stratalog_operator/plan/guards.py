"""The guard on volume claims, of storage nodes and of the etcd that the operator runs: without the metadata, what only
disks have is lost as well. What ends it is in `release`.

Pure. Source: docs/operator.md section 6.
"""

from __future__ import annotations

from stratalog_operator.plan.actions import GuardClaim, Offer
from stratalog_operator.plan.observed import SeenClaim


def guarding(claim: SeenClaim) -> Offer:
    """Of a claim that is in use: guarded as soon as it has a volume. One that was deleted before stays while its pod
    runs: its volume is kept."""
    if claim.is_bound and not claim.is_safe:
        return Offer([GuardClaim(claim.name, claim.uid)])
    return Offer()
