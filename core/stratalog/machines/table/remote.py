"""Transitions of the shard table for copies in the object store: NONE -> PARTIAL(commit offset) -> COMPLETE.

Pure functions of one transaction. Parts of one transaction stand or fall alone: a segment that was deleted or moved on
does not spoil its neighbours in a bundle. The write lock's epoch stands or falls for all.
Cost: O(log parts) per commit, O(parts) when a segment is completed or its parts are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar, assert_never

from stratalog.machines.table.bounds import INT64_MAX, MAX_DIGEST_BYTES, is_object_key, is_part_in_bounds
from stratalog.machines.table.locks import check_lock
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableTransaction, describe_segment
from stratalog.machines.tiering.upload_duty import uploader_of
from stratalog.model.commands.table_commands import (
    CommitParts,
    CompleteRemote,
    PartOutcomes,
    ReplaceManifest,
    ReplaceParts,
)
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, Rejected, StratalogError
from stratalog.model.ids import MAX_OFFSET, SegmentKey
from stratalog.model.metadata import Life, PartCommit, PartReplacement
from stratalog.model.parts import PartList
from stratalog.model.segment import RemoteCopy, RemotePart, RemoteState, Segment, SegmentState

T = TypeVar("T")
NO_COMMIT = RemoteCopy().commit_offset


def perform(
    tx: TableTransaction, command: CommitParts | CompleteRemote | ReplaceManifest | ReplaceParts
) -> Steps[PartOutcomes | Segment]:
    match command:
        case CommitParts():
            return (yield from commit_parts(tx, command))
        case CompleteRemote():
            return complete_remote(tx, command)
        case ReplaceManifest():
            return replace_manifest(tx, command)
        case ReplaceParts():
            return (yield from replace_parts(tx, command))
        case _:
            assert_never(command)


def _each(items: Iterable[T], change: Callable[[T], Segment]) -> Steps[PartOutcomes]:
    """A refused item does not undo the others: its refusal is its outcome."""
    outcomes: list[Segment | StratalogError] = []
    for number, item in enumerate(items, 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        try:
            outcomes.append(change(item))
        except Rejected as refusal:
            outcomes.append(refusal)
    return tuple(outcomes)


def commit_parts(tx: TableTransaction, command: CommitParts) -> Steps[PartOutcomes]:
    """Move commit offsets, each by its own compare-and-set. A commit that is there already is answered as done."""
    check_lock(tx, command.lock)
    return (yield from _each(command.commits, lambda commit: _commit_part(tx, commit, command.caller)))


def _commit_part(tx: TableTransaction, commit: PartCommit, caller: Life | None) -> Segment:
    part = commit.part
    segment = tx.state.segment(commit.segment)
    _check_part(segment.key, part)
    remote = segment.remote
    parts = part_list(remote.parts)
    if _is_committed(parts, part):
        return segment
    _refuse_unless_partial(segment)
    _check_uploader(tx, segment, caller)
    committed = commit_offset(segment)
    expected = segment.base_offset if commit.expected_commit_offset == NO_COMMIT else commit.expected_commit_offset
    if expected != committed:
        raise Conflict(
            f"{describe_segment(segment.key)} is committed up to {committed}, not {commit.expected_commit_offset}: "
            "continue from there with a new attempt"
        )
    if part.base_offset != committed:
        raise InvalidRequest(
            f"a part of {describe_segment(segment.key)} begins at {part.base_offset}, but the commit offset is "
            f"{committed}: "
            "parts follow one another without a gap"
        )
    if segment.end_offset is not None and part.end_offset > segment.end_offset:
        raise InvalidRequest(
            f"a part of {describe_segment(segment.key)} ends at {part.end_offset}, above the segment's end "
            f"{segment.end_offset}"
        )
    grown = RemoteCopy(
        RemoteState.PARTIAL, part.end_offset, parts.appended(part), None, None, remote.size_bytes + part.size_bytes
    )
    changed = _with_remote(segment, grown)
    tx.replace_segment(segment, changed)
    tx.put_part(segment.key, part)
    return changed


def complete_remote(tx: TableTransaction, command: CompleteRemote) -> Segment:
    """SEALED and committed to its end -> COMPLETE: the parts give way to the manifest that lists them."""
    check_lock(tx, command.lock)
    segment = tx.state.segment(command.segment)
    remote = segment.remote
    _check_manifest(command)
    if remote.state is RemoteState.COMPLETE:
        if (remote.manifest_key, remote.manifest_digest) == (command.manifest_key, command.manifest_digest):
            return segment
        raise Conflict(
            f"{describe_segment(segment.key)} is complete under manifest {remote.manifest_key}, not "
            f"{command.manifest_key}: the one named in the metadata is valid"
        )
    try:
        _check_uploader(tx, segment, command.caller)
    except Fenced as error:
        raise Conflict(str(error)) from None  # of this segment alone: its write lock is good
    if segment.state is not SegmentState.SEALED:
        raise Conflict(f"{describe_segment(segment.key)} is {segment.state.name}: only a SEALED one can be complete")
    if commit_offset(segment) != segment.end_offset:
        raise Conflict(
            f"{describe_segment(segment.key)} is committed up to {commit_offset(segment)} and ends at "
            f"{segment.end_offset}: "
            "commit the rest first"
        )
    whole = RemoteCopy(
        RemoteState.COMPLETE,
        commit_offset(segment),
        (),
        command.manifest_key,
        command.manifest_digest,
        command.size_bytes,
    )
    changed = _with_remote(segment, whole)
    tx.replace_segment(segment, changed)
    for part in remote.parts:
        tx.drop_part(segment.key, part)
    return changed


def replace_manifest(tx: TableTransaction, command: ReplaceManifest) -> Segment:
    """Point a COMPLETE segment at another manifest, by compare-and-set on the digest of the one that is named."""
    check_lock(tx, command.lock)
    segment = tx.state.segment(command.segment)
    remote, where = segment.remote, describe_segment(segment.key)
    _check_manifest(command)
    if segment.state is SegmentState.DELETED:
        raise Conflict(f"{where} is DELETED: leave it, what was put will be swept")
    if remote.state is not RemoteState.COMPLETE:
        raise Conflict(f"{where} is not complete in the object store: only a complete copy has a manifest to replace")
    if (remote.manifest_key, remote.manifest_digest) == (command.manifest_key, command.manifest_digest):
        return segment
    if remote.manifest_digest != command.old_digest:
        raise Conflict(f"{where} is complete under manifest {remote.manifest_key} by now: read it again")
    changed = _with_remote(
        segment,
        replace(
            remote,
            manifest_key=command.manifest_key,
            manifest_digest=command.manifest_digest,
            size_bytes=command.size_bytes,
            replaced_ms=tx.now_ms,
        ),
    )
    tx.replace_segment(segment, changed)
    return changed


def _check_manifest(command: CompleteRemote | ReplaceManifest) -> None:
    if (
        not is_object_key(command.manifest_key)
        or not 0 < len(command.manifest_digest) <= MAX_DIGEST_BYTES
        or not 0 <= command.size_bytes <= INT64_MAX
    ):
        raise InvalidRequest(f"the manifest of {describe_segment(command.segment)} needs a key, a digest and a size")


def replace_parts(tx: TableTransaction, command: ReplaceParts) -> Steps[PartOutcomes]:
    """Point committed parts at other objects with the same offsets (bundle compaction)."""
    check_lock(tx, command.lock)
    return (yield from _each(command.replacements, lambda one: _replace_parts(tx, one, command.caller)))


def _replace_parts(tx: TableTransaction, replacement: PartReplacement, caller: Life | None) -> Segment:
    segment = tx.state.segment(replacement.segment)
    _check_run(segment.key, replacement.old)
    _check_run(segment.key, replacement.new)
    span = (replacement.new[0].base_offset, replacement.new[-1].end_offset)
    if span != (replacement.old[0].base_offset, replacement.old[-1].end_offset):
        raise InvalidRequest(
            f"the new parts of {describe_segment(segment.key)} cover {span}, not what the old ones cover"
        )
    _refuse_unless_partial(segment)
    parts = part_list(segment.remote.parts)
    start = parts.find(span[0])
    if parts[start : start + len(replacement.new)] == replacement.new:
        return segment
    _check_uploader(tx, segment, caller)
    if parts[start : start + len(replacement.old)] != replacement.old:
        raise Conflict(
            f"the parts of {describe_segment(segment.key)} in {span} are not the ones to be replaced any more: read "
            "them again"
        )
    grown_bytes = sum(part.size_bytes for part in replacement.new) - sum(part.size_bytes for part in replacement.old)
    remote = replace(
        segment.remote,
        parts=parts.replaced(start, len(replacement.old), replacement.new),
        size_bytes=segment.remote.size_bytes + grown_bytes,
    )
    changed = _with_remote(segment, remote)
    tx.replace_segment(segment, changed)
    for part in replacement.old:
        tx.drop_part(segment.key, part)
    for part in replacement.new:
        tx.put_part(segment.key, part)
    return changed


def commit_offset(segment: Segment) -> int:
    """Everything of the segment below this is in the object store; its base offset when nothing is."""
    return segment.committed_end


def part_list(parts: Sequence[RemotePart]) -> PartList:
    return parts if isinstance(parts, PartList) else PartList(parts)


def _with_remote(segment: Segment, remote: RemoteCopy) -> Segment:
    """Written out instead of `replace`: a bundle commits thousands of parts at once, and this takes a third of the
    time."""
    return Segment(
        segment.key,
        segment.state,
        segment.leader,
        segment.replicas,
        segment.isr,
        segment.isr_version,
        segment.opened_ms,
        segment.end_offset,
        segment.seal,
        segment.local_nodes,
        remote,
        segment.deleted_ms,
        segment.fence,
        segment.handover,
        segment.policy,
    )


def _is_committed(parts: PartList, part: RemotePart) -> bool:
    index = parts.find(part.base_offset)
    return index < len(parts) and parts[index] == part


def _refuse_unless_partial(segment: Segment) -> None:
    if segment.state is SegmentState.DELETED:
        raise Conflict(f"{describe_segment(segment.key)} is DELETED: stop uploading it, its objects will be swept")
    if segment.remote.state is RemoteState.COMPLETE:
        raise Conflict(
            f"{describe_segment(segment.key)} is complete in the object store: nothing is to be committed to it"
        )


def _check_uploader(tx: TableTransaction, segment: Segment, caller: Life | None) -> None:
    """Fence a node whose duty has passed to another, or was never its own."""
    if caller is None:
        return
    uploader = uploader_of(segment, tx.state.is_alive, tx.state.mount_of)
    if uploader != caller.node_id:
        named = "no living node" if uploader is None else f"node {uploader}"
        raise Fenced(
            f"{describe_segment(segment.key)} is uploaded by {named}, not by node {caller.node_id}: leave it, what was "
            "put will be swept"
        )


def _check_part(key: SegmentKey, part: RemotePart) -> None:
    if not is_part_in_bounds(part) or not part.base_offset < part.end_offset <= MAX_OFFSET:
        raise InvalidRequest(f"a part of {describe_segment(key)} must name an object, bytes and offsets, not {part}")


def _check_run(key: SegmentKey, parts: tuple[RemotePart, ...]) -> None:
    if not parts:
        raise InvalidRequest(f"a replacement of parts of {describe_segment(key)} must name old and new ones")
    for part in parts:
        _check_part(key, part)
    for before, after in pairwise(parts):
        if before.end_offset != after.base_offset:
            raise InvalidRequest(
                f"parts of {describe_segment(key)} must be contiguous: {before.end_offset}, then {after.base_offset}"
            )
