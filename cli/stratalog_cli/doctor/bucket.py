"""Checks a bucket without a running node: every object by itself, then whether the objects of each segment cover it.

Reads every byte once. The bucket alone is judged: a segment is whole when a manifest and all its parts are, and what is
not sealed yet is whole up to where its parts reach. With metadata given, what metadata refers to must be there too.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass, field

from stratalog.admin_api.next_steps import AWAIT_RESTORE, CHECK_STORE, RESTORE_ARCHIVED, RESTORE_CLAIM, RESTORE_OBJECT
from stratalog.formats.bucket.claim import Claim
from stratalog.formats.bucket.cut import decode_cut
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.meta_snapshot import MetaSnapshotId, decode_head, decode_piece
from stratalog.formats.bucket.object_names import (
    BundleName,
    ClaimName,
    CutName,
    MetaSnapshotName,
    ObjectName,
    ObjectNames,
    SegmentObject,
    SegmentObjectName,
    is_one_part,
)
from stratalog.formats.bucket.part import PartHeader
from stratalog.formats.segments.digest import EMPTY_DIGEST, object_digest
from stratalog.machines.tiering.claims import NEXT_STEP, is_known
from stratalog.model.counting import counted
from stratalog.model.errors import Archived, Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey, ShardKey
from stratalog.model.segment import RemoteState, SealRecord, SegmentState
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.bundles import check_whole_bundle
from stratalog.stored.remote.claims import check_claim
from stratalog.stored.remote.expected import check_seal
from stratalog.stored.remote.indexes import check_index_under_name
from stratalog.stored.remote.manifests import ExpectedManifest, check_manifest
from stratalog.stored.remote.parts import check_whole_chunk
from stratalog_cli.doctor.examination import Examination, Metadata

_CLUSTER_ROOT = re.compile(
    r"^(?:(?P<prefix>.+)/)?(?P<cluster>[^/]+)/(?:data/[0-9a-f-]{36}/|(?:bundles|claims)/[0-9]+/|meta/[0-9]{12}-|cuts/[^/]+[.]cut)"
)
_FOREIGN_NAMED = 3
_ORPHAN = "none needed: the node sweeps what no metadata names after remote.orphan.grace.ms"


@dataclass(slots=True)
class _Part:
    key: str
    position: int
    size_bytes: int
    header: PartHeader
    is_bundled: bool


@dataclass(slots=True)
class _Contents:
    """What one cluster's objects hold."""

    objects: dict[str, int] = field(default_factory=dict)
    """Key -> size."""
    parts: dict[SegmentKey, list[_Part]] = field(default_factory=lambda: defaultdict(list))
    manifests: dict[SegmentKey, list[tuple[str, Manifest]]] = field(default_factory=lambda: defaultdict(list))
    index_digests: dict[str, bytes] = field(default_factory=dict)
    index_seals: dict[str, SealRecord] = field(default_factory=dict)
    key_digests: dict[str, bytes] = field(default_factory=dict)
    """Of the runs of key indexes."""
    broken: set[str] = field(default_factory=set)
    """What could not be read, or is not what it should be."""
    archived: set[str] = field(default_factory=set)
    """What of it is in an archive class: it is whole, as far as is known."""
    claims: dict[str, Claim] = field(default_factory=dict)


async def check_bucket(store: ObjectStore, metadata: Metadata | None, seen: Examination) -> None:
    """Raises: Unavailable when the bucket cannot be listed."""
    clusters: dict[tuple[str, str], _Contents] = defaultdict(_Contents)
    foreign: list[str] = []
    foreign_count = 0
    async for info in store.list(""):
        root = _CLUSTER_ROOT.match(info.key)
        if root is None:
            foreign_count += 1
            if len(foreign) < _FOREIGN_NAMED:
                foreign.append(info.key)
        else:
            clusters[root["prefix"] or "", root["cluster"]].objects[info.key] = info.size_bytes
    if foreign:
        what = f"{counted(foreign_count, 'object')} that Stratalog did not write, such as {', '.join(foreign)}"
        seen.warn(store.url, what, "none needed: foreign objects are left alone")
    if not clusters:
        step = "none needed for a new bucket; if it has data, check the URL: bucket, prefix, endpoint"
        seen.hint(store.url, "holds no object of Stratalog", step)
    for (prefix, cluster), contents in sorted(clusters.items()):
        names = ObjectNames(prefix, cluster)
        for key in sorted(contents.objects):
            seen.step(key)
            await _check_object(store, names, key, contents, seen)
        is_known = metadata is not None and metadata.header is not None and metadata.header.cluster_id == cluster
        known = metadata if is_known else None
        _check_segments(contents, known, seen)
        if known is not None:
            _compare_with_metadata(contents, known, seen)
            _check_claims(contents, known, seen)


# Each object by itself ------------------------------------------------------------------------------------------------
async def _check_object(
    store: ObjectStore, names: ObjectNames, key: str, contents: _Contents, seen: Examination
) -> None:
    name = names.parse(key)
    if name is None:
        seen.warn(key, "not a name that Stratalog uses", "none needed: foreign objects are left alone")
        return
    try:
        body = await store.get(key)
        _read_object(name, key, body, names.cluster_id, contents, seen)
        seen.objects += 1
    except NotFound:
        return  # deleted since it was listed: a node is at work
    except Corrupt as error:
        contents.broken.add(key)
        next_step = RESTORE_CLAIM if isinstance(name, ClaimName) else RESTORE_OBJECT
        seen.error(key, f"at byte {error.position}: {error.reason}", next_step)
    except Archived as error:
        contents.broken.add(key)
        contents.archived.add(key)
        seen.warn(key, f"could not be read: {error}", AWAIT_RESTORE if error.is_restoring else RESTORE_ARCHIVED)
    except StratalogError as error:
        contents.broken.add(key)
        seen.error(key, f"could not be read: {error}", CHECK_STORE)


def _read_object(
    name: ObjectName, key: str, body: bytes, cluster_id: str, contents: _Contents, seen: Examination
) -> None:
    match name:
        case BundleName():
            for entry, part in check_whole_bundle(body, cluster_id, name, key):
                contents.parts[part.identity.key].append(_Part(key, entry.position, entry.size_bytes, part, True))
                seen.batch_bytes += part.data_size_bytes
        case ClaimName():
            contents.claims[key] = check_claim(body, cluster_id, name, key)
        case CutName(cut_name):
            cut = decode_cut(body, source=key)
            if (cut.cluster_id, cut.name) != (cluster_id, cut_name):
                raise Corrupt(f"it is snapshot {cut.name} of cluster {cut.cluster_id}", source=key, position=0)
        case MetaSnapshotName(number, version, nonce, piece):
            snapshot_id = MetaSnapshotId(cluster_id, number, version, nonce)
            if piece is not None:
                decode_piece(body, snapshot_id, piece, source=key)
            elif (head := decode_head(body, source=key)).id != snapshot_id:
                raise Corrupt(f"the snapshot says it is {head.id}: it belongs elsewhere", source=key, position=0)
        case SegmentObjectName(kind=SegmentObject.CHUNK | SegmentObject.PACKED):
            part = check_whole_chunk(body, cluster_id, name, key).header
            contents.parts[name.segment].append(_Part(key, 0, len(body), part, False))
            seen.batch_bytes += part.data_size_bytes
        case SegmentObjectName(kind=SegmentObject.INDEX):
            contents.index_seals[key] = check_index_under_name(body, cluster_id, name, key).seal
            contents.index_digests[key] = object_digest(body)
        case SegmentObjectName(kind=SegmentObject.KEYS):
            contents.key_digests[key] = object_digest(body)
        case SegmentObjectName():
            manifest = check_manifest(body, ExpectedManifest.of_name(cluster_id, name, key))
            contents.manifests[name.segment].append((key, manifest))


# What they make together ----------------------------------------------------------------------------------------------
def _check_segments(contents: _Contents, metadata: Metadata | None, seen: Examination) -> None:
    ends: dict[SegmentKey, int] = {}
    whole_segments: set[SegmentKey] = set()
    used: set[tuple[str, int]] = set()
    keys = sorted({*contents.parts, *contents.manifests}, key=lambda key: (str(key.topic_id), key.shard, key.epoch))
    for key in keys:
        seen.segments += 1
        whole = [manifest for manifest in contents.manifests[key] if _manifest_holds(contents, manifest, seen)]
        used |= {(manifest.index_key, 0) for _, manifest in contents.manifests[key]}
        used |= {(run.object_key, 0) for _, manifest in contents.manifests[key] for run in manifest.key_runs}
        if whole:
            ends[key] = whole[0][1].seal.end_offset
            whole_segments.add(key)
            used |= {(part.object_key, part.position) for _, manifest in whole for part in manifest.parts}
            used |= {(name, 0) for name, _ in contents.manifests[key]}
        else:
            ends[key] = _follow_parts(key, contents, used, metadata, seen)
    _check_shards(ends, contents, seen)
    for key in keys:
        for part in contents.parts[key]:
            # What a segment has taken home stays in its bundle until nothing refers to that one.
            is_taken_home = part.is_bundled and key in whole_segments
            if (part.key, part.position) not in used and not is_taken_home:
                what = (
                    f"offsets [{part.header.base_offset}, {part.header.end_offset}) of {_words(key)} are elsewhere too"
                )
                seen.warn(f"{part.key} at {part.position}", f"unexplained: {what}", _ORPHAN)
    for index in (*contents.index_digests, *contents.key_digests):
        if (index, 0) not in used:
            seen.warn(index, "unexplained: no manifest names it", _ORPHAN)


def _manifest_holds(contents: _Contents, named: tuple[str, Manifest], seen: Examination) -> bool:
    """Whether everything a manifest names is there and chains up to its seal digest. What is not is reported."""
    key, manifest = named
    problems: list[str] = []
    found = {(part.key, part.position): part for part in contents.parts[manifest.identity.key]}
    digest, sizes = EMPTY_DIGEST, manifest.object_sizes
    is_unread = False
    for part in manifest.parts:
        held = found.get((part.object_key, part.position))
        if held is None and part.object_key in contents.archived:
            is_unread = True
            continue
        if held is None:
            state = "damaged" if part.object_key in contents.broken else "missing"
            problems.append(f"part [{part.base_offset}, {part.end_offset}) is {state}: {part.object_key}")
            continue
        header = held.header
        if (header.base_offset, header.end_offset, held.size_bytes) != (
            part.base_offset,
            part.end_offset,
            part.size_bytes,
        ):
            problems.append(f"{part.object_key} holds offsets [{header.base_offset}, {header.end_offset})")
        elif (stored := contents.objects[part.object_key]) != sizes[part.object_key] and is_one_part(part.object_key):
            problems.append(f"{part.object_key} has {stored} bytes, not {sizes[part.object_key]}")
        elif header.digest_before != digest and not is_unread:
            problems.append(f"part [{part.base_offset}, {part.end_offset}) does not continue from the digest before it")
        digest = header.digest_after
    if not problems and not is_unread and digest != manifest.seal.digest:
        problems.append(f"the parts give digest {digest.hex()}, the seal says {manifest.seal.digest.hex()}")
    index = contents.index_digests.get(manifest.index_key)
    if index is None and manifest.index_key in contents.archived:
        is_unread = True
    elif index is None:
        state = "damaged" if manifest.index_key in contents.broken else "missing"
        problems.append(f"its index is {state}: {manifest.index_key}")
    elif index != manifest.index_digest:
        problems.append(f"{manifest.index_key} is not the index it names")
    else:
        try:
            check_seal("its index", contents.index_seals[manifest.index_key], manifest.seal, manifest.index_key)
        except Corrupt as error:
            problems.append(error.reason)
    for run in manifest.key_runs:
        known_digest = contents.key_digests.get(run.object_key)
        if known_digest != run.digest and run.object_key not in contents.archived:
            state = "missing" if known_digest is None else "not the one it names"
            problems.append(f"its key index is {state}: {run.object_key}")
    for problem in problems:
        seen.error(key, problem, RESTORE_OBJECT)
    return not problems


def _follow_parts(
    key: SegmentKey, contents: _Contents, used: set[tuple[str, int]], metadata: Metadata | None, seen: Examination
) -> int:
    """How far a chain of whole parts reaches from the segment's base offset. Attempts of one range are equally true."""
    parts = sorted(contents.parts[key], key=lambda part: (part.header.base_offset, -part.header.end_offset))
    digests: dict[int, bytes] = {key.base_offset: EMPTY_DIGEST}
    for part in parts:
        before = digests.get(part.header.base_offset)
        if before is None:
            continue
        if part.header.digest_before != before:
            what = (
                f"part [{part.header.base_offset}, {part.header.end_offset}) does not continue from the digest "
                f"before it"
            )
            seen.error(f"{part.key} at {part.position}", what, RESTORE_OBJECT)
            continue
        digests.setdefault(part.header.end_offset, part.header.digest_after)
        used.add((part.key, part.position))
    end = max(digests)
    beyond = [part for part in parts if part.header.base_offset > end]
    if beyond and (metadata is None or key in metadata.segments):
        # The rest of a deleted segment may lie in a bundle that others still use: only metadata knows.
        say = seen.warn if metadata is None else seen.error
        what = f"offsets [{end}, {beyond[0].header.base_offset}) of {_words(key)} are in no whole part"
        step = (
            "none needed if the segment was deleted; check with the data directory's metadata: doctor DIR --bucket URL"
        )
        say(f"{beyond[0].key} at {beyond[0].position}", f"gap: {what}", step if metadata is None else RESTORE_OBJECT)
        used |= {(part.key, part.position) for part in beyond}
    return end


def _check_shards(ends: dict[SegmentKey, int], contents: _Contents, seen: Examination) -> None:
    """Neighbours of a shard must meet. The oldest may begin anywhere: retention took what was before."""
    by_shard: dict[ShardKey, list[SegmentKey]] = defaultdict(list)
    for key in ends:
        by_shard[key.shard_key].append(key)
    for keys in by_shard.values():
        keys.sort(key=lambda key: key.epoch)
        for before, after in itertools.pairwise(keys):
            end, start = ends[before], after.base_offset
            if end > start:
                what = f"reaches to offset {end}, the next segment begins at {start}"
                seen.error(_words(before), what, "report this: two segments hold the same offsets")
            elif end < start and after.epoch == before.epoch + 1 and contents.manifests[before]:
                what = f"gap: it ends at offset {end}, the next segment begins at {start}"
                seen.error(_words(before), what, RESTORE_OBJECT)
            elif end < start:
                # Each segment is uploaded on its own: one may trail behind the next.
                what = f"offsets [{end}, {start}) before the next segment are not in the bucket"
                seen.warn(_words(before), what, "none needed while the node that has them still uploads")


def _compare_with_metadata(contents: _Contents, metadata: Metadata, seen: Examination) -> None:
    held = {(part.key, part.position) for parts in contents.parts.values() for part in parts}
    for key, segment in metadata.segments.items():
        if segment.state is SegmentState.DELETED or segment.remote.state is RemoteState.NONE:
            continue
        manifest = segment.remote.manifest_key
        if manifest is not None and manifest not in contents.objects:
            seen.error(manifest, f"missing: metadata names it as the manifest of {_words(key)}", RESTORE_OBJECT)
        for part in segment.remote.parts:
            if (part.object_key, part.position) not in held and part.object_key not in contents.broken:
                what = (
                    f"missing: metadata names it for offsets [{part.base_offset}, {part.end_offset}) of {_words(key)}"
                )
                seen.error(f"{part.object_key} at {part.position}", what, RESTORE_OBJECT)


def _check_claims(contents: _Contents, metadata: Metadata, seen: Examination) -> None:
    """A claim by a life that metadata never heard of: this metadata is a copy, or older than the bucket."""
    for key, claim in contents.claims.items():
        if not is_known(claim.nonce, metadata.holders):
            what = (
                f"lock epoch {claim.lock_epoch} of node {claim.node_id} (storage {claim.storage_id}) was claimed by a "
                "life that this metadata does not know: a copy of this directory is in use elsewhere, or the "
                "metadata is "
                "older than the bucket; started, the node neither uploads nor sweeps"
            )
            seen.error(key, what, NEXT_STEP)


def _words(key: SegmentKey) -> str:
    return f"topic {key.topic_id} shard {key.shard} epoch {key.epoch} base {key.base_offset}"
