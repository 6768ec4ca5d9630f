"""Checks a segment's remote copy: manifest, indexes, every part, and that the parts' digests chain up to the seal
digest.

Lives on the event loop; the store's threads do the reading. One part is in memory at a time. Bad data is reported as
findings, never raised; so is a store that does not answer, because what was not read was not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stratalog.admin_api.models import Finding
from stratalog.admin_api.next_steps import AWAIT_RESTORE, CHECK_STORE, RESTORE_ARCHIVED, RESTORE_OBJECT
from stratalog.formats.bucket.manifest import Manifest
from stratalog.formats.bucket.object_names import is_one_part
from stratalog.formats.segments.digest import EMPTY_DIGEST
from stratalog.model.errors import Archived, Corrupt, NotFound, StratalogError
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemotePart, RemoteState, Segment
from stratalog.objects.store import ObjectStore
from stratalog.stored.remote.indexes import check_key_run, read_index
from stratalog.stored.remote.manifests import ExpectedManifest, read_manifest
from stratalog.stored.remote.parts import check_part_size, check_whole_part


@dataclass(slots=True)
class RemoteReport:
    batch_bytes: int = 0
    """Bytes of batches that passed."""
    end_offset: int = 0
    digest: bytes = EMPTY_DIGEST
    """Digest of the batches up to `end_offset`."""
    findings: list[Finding] = field(default_factory=list)

    def error(self, place: str, what: str, next_step: str = RESTORE_OBJECT) -> None:
        self.findings.append(Finding(severity="error", place=place, what=what, next_step=next_step))

    def failed(self, place: str, error: StratalogError) -> None:
        match error:
            case NotFound():
                self.error(place, "the object is missing")
            case Corrupt():
                self.error(place, f"at byte {error.position}: {error.reason}")
            case Archived():
                step = AWAIT_RESTORE if error.is_restoring else RESTORE_ARCHIVED
                found = Finding(severity="warning", place=place, what=f"could not be read: {error}", next_step=step)
                self.findings.append(found)
            case _:
                self.error(place, f"could not be read: {error}", CHECK_STORE)


async def check_remote_segment(store: ObjectStore, cluster_id: str, segment: Segment) -> RemoteReport:
    """Check what metadata says of a segment's remote copy against what the store holds."""
    report = RemoteReport(end_offset=segment.base_offset)
    match segment.remote.state:
        case RemoteState.NONE:
            return report
        case RemoteState.PARTIAL:
            await _check_parts(store, cluster_id, segment.key, segment.remote.parts, report)
            if not report.findings and report.end_offset != segment.remote.commit_offset:
                report.error(
                    str(segment.key),
                    f"parts end at offset {report.end_offset}, the commit offset is {segment.remote.commit_offset}",
                )
            return report
        case RemoteState.COMPLETE:
            manifest = await _read_manifest(store, cluster_id, segment, report)
            if manifest is not None:
                await check_what_manifest_names(store, manifest, report)
            return report


async def check_what_manifest_names(store: ObjectStore, manifest: Manifest, report: RemoteReport) -> None:
    """Check every object that a manifest names. Requires: the manifest itself was checked."""
    key = manifest.identity.key
    await _check_index(store, manifest, report)
    await _check_key_runs(store, manifest, report)
    await _check_parts(store, manifest.identity.cluster_id, key, manifest.parts, report)
    await _check_sizes(store, manifest, report)
    if not report.findings and report.digest != manifest.seal.digest:
        report.error(str(key), f"digest is {report.digest.hex()}, the seal says {manifest.seal.digest.hex()}")


async def _check_parts(
    store: ObjectStore, cluster_id: str, segment: SegmentKey, parts: Iterable[RemotePart], report: RemoteReport
) -> None:
    """Check parts in order, going on from `report.end_offset`. After one that fails the digest chain begins again."""
    chained = True
    for part in parts:
        place = place_of(part)
        try:
            check_part_size(part)
            body = await store.get_range_view(part.object_key, part.position, part.position + part.size_bytes)
            expected = report.digest if chained else None
            header = check_whole_part(body, cluster_id, segment, part, digest_before=expected).header
        except StratalogError as error:
            report.failed(place, error)
            chained = False
            report.end_offset = part.end_offset
            continue
        if part.base_offset != report.end_offset:
            report.error(place, f"begins at offset {part.base_offset}, the part before ends at {report.end_offset}")
        report.end_offset = part.end_offset
        report.digest = header.digest_after
        chained = True
        report.batch_bytes += header.data_size_bytes


def place_of(part: RemotePart) -> str:
    """Where a part is, for people."""
    return f"{part.object_key} [{part.position}, {part.position + part.size_bytes})"


async def _read_manifest(
    store: ObjectStore, cluster_id: str, segment: Segment, report: RemoteReport
) -> Manifest | None:
    key = segment.remote.manifest_key
    if key is None:
        report.error(str(segment.key), "metadata says complete but names no manifest")
        return None
    try:
        return await read_manifest(store, ExpectedManifest.of_segment(cluster_id, segment))
    except StratalogError as error:
        report.failed(key, error)
        return None


async def _check_index(store: ObjectStore, manifest: Manifest, report: RemoteReport) -> None:
    try:
        await read_index(store, manifest)
    except StratalogError as error:
        report.failed(manifest.index_key, error)


async def _check_sizes(store: ObjectStore, manifest: Manifest, report: RemoteReport) -> None:
    """Checks the sizes of chunks. Readers ignore what is behind their end, but a copy with wrong sizes does not count
    as whole."""
    for key, size_bytes in manifest.object_sizes.items():
        if not is_one_part(key):
            continue
        try:
            found = (await store.head(key)).size_bytes
        except NotFound:
            continue  # told with its parts
        except StratalogError as error:
            report.failed(key, error)
            continue
        if found != size_bytes:
            report.error(key, f"it has {found} bytes, the manifest says {size_bytes}")


async def _check_key_runs(store: ObjectStore, manifest: Manifest, report: RemoteReport) -> None:
    """By their digests: `stratalog pipeline verify` compares them with the batches."""
    for run in manifest.key_runs:
        try:
            check_key_run(await store.get(run.object_key), run)
        except StratalogError as error:
            report.failed(run.object_key, error)
