"""Reads the claims of a node's write lock epochs."""

from __future__ import annotations

from stratalog.admin_api.next_steps import RESTORE_CLAIM
from stratalog.formats.bucket.claim import Claim, decode_claim
from stratalog.formats.bucket.object_names import ClaimName
from stratalog.formats.fields import Buffer
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.expected import check_same


def check_claim(body: Buffer, cluster_id: str, name: ClaimName, source: str) -> Claim:
    """`body` is the whole object. Raises: Corrupt; WrongObject for a claim that belongs under another name."""
    claim = decode_claim(body, source=source)
    check_same(
        "claim",
        source,
        0,
        ("cluster", claim.cluster_id, cluster_id),
        ("node", claim.node_id, name.node_id),
        ("lock epoch", claim.lock_epoch, name.lock_epoch),
        next_step=RESTORE_CLAIM,
    )
    return claim


async def read_claim(store: ObjectStore, cluster_id: str, name: ClaimName, object_key: str) -> Claim:
    """Raises: Corrupt, WrongObject, NotFound, and whatever the store raises while it is away."""
    return check_claim(await store.get(object_key), cluster_id, name, object_key)
