"""A small bucket, and objects that do not belong where they lie: sound ones of something else, cut ones, and ones that
claim hostile lengths under a right CRC.

One shard: two complete segments of two chunks each, and a third whose parts are in a bundle. Each corpus function
returns bodies by what is wrong with them, to be put under the key of the right object.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from uuid import UUID

from stratalog.formats.batches.record_batch import walk
from stratalog.formats.bucket.bundle import (
    BUNDLE_TRAILER_BYTES,
    BundleHeader,
    BundleMember,
    check_bundle,
    encode_bundle,
)
from stratalog.formats.bucket.claim import Claim, encode_claim
from stratalog.formats.bucket.manifest import Manifest, decode_manifest, encode_manifest, manifest_digest
from stratalog.formats.bucket.object_names import BundleName, ObjectNames
from stratalog.formats.bucket.part import PART_HEADER_BYTES, check_part, encode_part
from stratalog.formats.fields import Buffer
from stratalog.formats.segments.digest import object_digest
from stratalog.formats.segments.index_block import decode_index_block, encode_index_block
from stratalog.model.segment import RemotePart, RemoteState, SealRecord, Segment
from stratalog.objects import ObjectStore, open_store
from support.cold_data import CLUSTER_ID, ColdShard, batches_from
from support.damage_corpus import resealed

TOPIC_ID = UUID(int=77)
FIRST_ATTEMPT = 50
"""Older attempts of the same objects have lower numbers."""
HOSTILE = 1 << 62
NODE_ID, LOCK_EPOCH = 1, 2
OTHER_SEAL_DIGEST = b"\x07" * 16

OLDER_ATTEMPT = "of an older attempt"
CUT_BY_A_BYTE = "cut by a byte"


@dataclass(slots=True)
class Bucket:
    """`segments`: what the metadata say, which a test may change with the objects."""

    store: ObjectStore
    names: ObjectNames
    segments: list[Segment]
    claim: str
    part: RemotePart
    """The first chunk of the first segment."""

    @property
    def complete(self) -> Segment:
        return self.segments[0]

    @property
    def bundle(self) -> str:
        return self.segments[2].remote.parts[0].object_key

    async def manifest(self) -> Manifest:
        key = self.complete.remote.manifest_key or ""
        return decode_manifest(await self.store.get(key), source=key)

    async def replace(self, key: str, body: bytes) -> None:
        await self.store.delete([key])
        await self.store.put(key, [body])

    async def name_manifest(self, body: bytes) -> None:
        """The metadata name this manifest, by its digest, under the key of the one before."""
        remote = replace(self.complete.remote, manifest_digest=manifest_digest(body), size_bytes=len(body))
        self.segments[0] = replace(self.complete, remote=remote)
        await self.replace(remote.manifest_key or "", body)


async def fill(
    store: ObjectStore, *, cluster_id: str = CLUSTER_ID, shard: int = 3, first: int = FIRST_ATTEMPT
) -> Bucket:
    cold = ColdShard(store, ObjectNames("", cluster_id), TOPIC_ID, shard, attempts=first)
    await cold.add([batches_from(0, 5), batches_from(15, 5)])
    await cold.add([batches_from(30, 5, epoch=1), batches_from(45, 5, epoch=1)])
    bundled = [batches_from(60, 2, epoch=2), batches_from(66, 2, epoch=2)]
    await cold.add(bundled, state=RemoteState.PARTIAL, is_bundled=True)
    claim = cold.names.claim(node_id=NODE_ID, lock_epoch=LOCK_EPOCH)
    await store.put(claim, [encode_claim(Claim(cluster_id, NODE_ID, "disk", LOCK_EPOCH, UUID(int=5)))])
    first_manifest = cold.segments[0].remote.manifest_key or ""
    part = decode_manifest(await store.get(first_manifest), source=first_manifest).parts[0]
    return Bucket(store, cold.names, cold.segments, claim, part)


# What is wrong --------------------------------------------------------------------------------------------------------
async def wrong_manifests(bucket: Bucket) -> dict[str, bytes]:
    key = bucket.complete.remote.manifest_key or ""
    right = await bucket.store.get(key)
    others = await _other_buckets()
    found = {name: await one.store.get(one.complete.remote.manifest_key or "") for name, one in others.items()}
    found["of another segment"] = await bucket.store.get(bucket.segments[1].remote.manifest_key or "")
    size = struct.pack(">q", decode_manifest(right, source=key).parts[0].size_bytes)
    return found | _cut(right) | {"of hostile lengths": _lie(right, right.index(size), 0, len(right))}


async def wrong_parts(bucket: Bucket) -> dict[str, bytes]:
    """For the first chunk of the first segment."""
    right = await bucket.store.get(bucket.part.object_key)
    others = {name: await other.store.get(other.part.object_key) for name, other in (await _other_buckets()).items()}
    second = bucket.segments[1].remote.manifest_key or ""
    of_second = decode_manifest(await bucket.store.get(second), source=second).parts
    others["of another segment"] = await bucket.store.get(of_second[0].object_key)
    others["of other offsets"] = await bucket.store.get((await bucket.manifest()).parts[1].object_key)
    header = check_part(right, source="right").header
    for name, value in (("data", header.data_size_bytes), ("index", header.index_size_bytes)):
        at = right.index(struct.pack(">q", value), 0, PART_HEADER_BYTES)
        others[f"of a hostile length of its {name}"] = _lie(right, at, 0, PART_HEADER_BYTES)
    return others | _cut(right)


async def wrong_indexes(bucket: Bucket) -> dict[str, bytes]:
    """An older attempt is not among them: an index does not say which attempt it is, so its bytes are the same."""
    right_key = (await bucket.manifest()).index_key
    right = await bucket.store.get(right_key)
    others = {
        name: await other.store.get((await other.manifest()).index_key)
        for name, other in (await _other_buckets()).items()
        if name != OLDER_ATTEMPT
    }
    second = bucket.segments[1].remote.manifest_key or ""
    index_key = decode_manifest(await bucket.store.get(second), source=second).index_key
    others["of another segment"] = await bucket.store.get(index_key)
    size = struct.pack(">q", decode_index_block(right, source=right_key).seal.size_bytes)
    return others | _cut(right) | {"of hostile lengths": _lie(right, right.index(size), 0, len(right))}


async def wrong_bundles(bucket: Bucket) -> dict[str, bytes]:
    right = await bucket.store.get(bucket.bundle)
    name = bucket.names.parse(bucket.bundle)
    assert isinstance(name, BundleName)
    others = {
        "of another node": rewritten_bundle(right, replace(name, node_id=name.node_id + 1)),
        "of another lock epoch": rewritten_bundle(right, replace(name, lock_epoch=name.lock_epoch + 1)),
        "of another number": rewritten_bundle(right, replace(name, number=name.number + 1)),
        OLDER_ATTEMPT: rewritten_bundle(right, replace(name, attempt=name.attempt - 1)),
    }
    stranger = (await _other_buckets())["of another cluster"]
    others["of another cluster"] = await stranger.store.get(stranger.bundle)
    start = len(right) - BUNDLE_TRAILER_BYTES
    lying = _lie(right, start + 24, start, len(right))
    return others | _cut(right) | {"of a hostile directory": lying}


def wrong_claims(bucket: Bucket) -> dict[str, bytes]:
    right = Claim(bucket.names.cluster_id, NODE_ID, "disk", LOCK_EPOCH, UUID(int=5))
    return {
        "of another cluster": encode_claim(replace(right, cluster_id="another")),
        "of another node": encode_claim(replace(right, node_id=NODE_ID + 1)),
        "of an older epoch": encode_claim(replace(right, lock_epoch=LOCK_EPOCH - 1)),
    } | _cut(encode_claim(right))


WRONG_SEALS = ("end offset", "size", "digest")


def seal_with_wrong(what: str, seal: SealRecord) -> SealRecord:
    match what:
        case "end offset":
            return replace(seal, end_offset=seal.end_offset + 1)
        case "size":
            return replace(seal, size_bytes=seal.size_bytes + 1)
    return replace(seal, digest=OTHER_SEAL_DIGEST)


async def name_manifest_of_seal(bucket: Bucket, what: str) -> None:
    """The metadata name a manifest by its right digest; its seal record is another than theirs."""
    manifest = await bucket.manifest()
    *before, last = manifest.parts
    parts = (*before, replace(last, end_offset=last.end_offset + (what == "end offset")))
    wrong = replace(manifest, seal=seal_with_wrong(what, manifest.seal), parts=parts)
    await bucket.name_manifest(encode_manifest(wrong))


async def name_index_of_seal(bucket: Bucket, what: str) -> None:
    """The metadata name a manifest, and that an index, each by its right digest; the index has another seal record."""
    manifest = await bucket.manifest()
    block = decode_index_block(await bucket.store.get(manifest.index_key), source=manifest.index_key)
    body = encode_index_block(block.identity, seal_with_wrong(what, block.seal), block.points, block.table)
    await bucket.replace(manifest.index_key, body)
    named = replace(manifest, index_size_bytes=len(body), index_digest=object_digest(body))
    await bucket.name_manifest(encode_manifest(named))


def rewritten_part(body: Buffer, attempt: int) -> list[Buffer]:
    """The same batches as the part that another attempt would have made of them."""
    whole = memoryview(body)
    part = check_part(whole, source="part").header
    data = bytes(whole[PART_HEADER_BYTES : part.index_position])
    headers = [one for _, one in walk(data, source="part")]
    pieces, _ = encode_part(
        part.identity, part.base_offset, part.end_offset, data, headers, part.digest_before, attempt
    )
    return pieces


def rewritten_bundle(body: bytes, name: BundleName) -> bytes:
    """The same batches as the bundle that another writer or attempt would have made of them."""
    header, entries = check_bundle(body, source="bundle")
    members = []
    for entry in entries:
        pieces = rewritten_part(memoryview(body)[entry.position : entry.position + entry.size_bytes], name.attempt)
        members.append(BundleMember(entry.identity, entry.base_offset, entry.end_offset, pieces))
    buffers, _ = encode_bundle(
        BundleHeader(header.cluster_id, name.node_id, name.lock_epoch, name.number, name.attempt), members
    )
    return b"".join(buffers)


async def _other_buckets() -> dict[str, Bucket]:
    """What differs, to a bucket that is equal otherwise."""
    stores = [open_store("memory:") for _ in range(3)]
    return {
        "of another cluster": await fill(stores[0], cluster_id="another"),
        "of another shard": await fill(stores[1], shard=4),
        OLDER_ATTEMPT: await fill(stores[2], first=FIRST_ATTEMPT - 20),
    }


def _cut(right: bytes) -> dict[str, bytes]:
    return {"empty": b"", "cut in its header": right[:40], CUT_BY_A_BYTE: right[:-1]}


def _lie(right: bytes, at: int, start: int, end: int) -> bytes:
    """The number at `at` is hostile, and the CRC of the structure at `[start, end)` is right."""
    damaged = bytearray(right)
    struct.pack_into(">q", damaged, at, HOSTILE)
    return resealed(damaged, start, end)
