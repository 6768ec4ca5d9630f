"""A claim: the object by which one life of a node takes a write-lock epoch in the bucket (docs/formats.md section 12).

It is created, never replaced, so of two lives that were given the same epoch (by copies of one metadata store) one
gets it. The nonce belongs to one life, so a life that reads a claim knows whether it is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stratalog.formats.envelope import Structure, open_envelope, seal_envelope
from stratalog.formats.fields import Buffer, FieldWriter
from stratalog.formats.identity import MAX_CLUSTER_ID_BYTES

MAX_STORAGE_ID_BYTES = 64


@dataclass(frozen=True, slots=True)
class Claim:
    cluster_id: str
    node_id: int
    storage_id: str
    lock_epoch: int
    nonce: UUID


def encode_claim(claim: Claim) -> bytes:
    """Raises: InvalidRequest for a number or a text that does not fit."""
    out = FieldWriter()
    out.text(claim.cluster_id, MAX_CLUSTER_ID_BYTES, "cluster id")
    out.natural(claim.node_id, "node id")
    out.text(claim.storage_id, MAX_STORAGE_ID_BYTES, "storage id")
    out.natural(claim.lock_epoch, "lock epoch")
    out.uuid(claim.nonce)
    return seal_envelope(Structure.CLAIM, out.getvalue())


def decode_claim(data: Buffer, *, source: str) -> Claim:
    """`data` is the whole object. Raises: Corrupt."""
    fields = open_envelope(data, Structure.CLAIM, source=source, position=0)
    claim = Claim(
        cluster_id=fields.text(MAX_CLUSTER_ID_BYTES, "cluster id"),
        node_id=fields.natural("node id"),
        storage_id=fields.text(MAX_STORAGE_ID_BYTES, "storage id"),
        lock_epoch=fields.natural("lock epoch"),
        nonce=fields.uuid("nonce"),
    )
    fields.finish()
    return claim
