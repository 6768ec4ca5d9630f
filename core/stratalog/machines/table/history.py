"""The newest change sets, stored beside the records, so that watchers continue where they were when another process
leads. A stored change leaves out what follows from the records: a segment's seal record, which is written once, and its
parts, which only grow until a manifest replaces them, and the keys of a credential. `changes_kept` completes the
changes with the present records, from the newest backwards, and ends at the first set that cannot be completed any
more.

Pure. Cost: one more write per command that readers see, of the size of its change; next to nothing for a large one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stratalog.machines.table.records import CredentialNote, NotedChange, NotedChanges, SegmentNote
from stratalog.machines.table.state import TableState
from stratalog.model.metadata import Change, ChangeSet, CredentialChanged, CredentialDeleted, SegmentChanged
from stratalog.model.parts import PartList
from stratalog.model.segment import RemoteState


def changes_kept(state: TableState, noted: Iterable[NotedChanges]) -> tuple[ChangeSet, ...]:
    """The change sets up to the state's version without a gap, as far back as they are kept and still true."""
    by_version: Mapping[int, NotedChanges] = {one.version: one for one in noted}
    sets: list[ChangeSet] = []
    version = state.header.version
    while (one := by_version.get(version)) is not None and one.changes is not None:
        changes = [_whole(state, change) for change in one.changes]
        kept = tuple([change for change in changes if change is not None])
        if len(kept) < len(changes):
            break
        sets.append(ChangeSet(version, kept))
        version -= 1
    return tuple(reversed(sets))


def _whole(state: TableState, change: NotedChange) -> Change | None:
    """The change as watchers got it; None if the records have changed too much since."""
    if isinstance(change, CredentialNote):
        # As it is now: another set or its deletion follows in a later change, and a watcher may know that already.
        present_one = state.credentials.get(change.name)
        return CredentialDeleted(change.name) if present_one is None else CredentialChanged(present_one)
    if not isinstance(change, SegmentNote):
        return change
    segment, count = change.segment, change.part_count
    present = state.find_segment(segment.key)
    if present is None:
        return SegmentChanged(segment) if not (change.has_seal or count) else None
    if change.has_seal:
        segment = replace(segment, seal=present.seal)
    if count:
        parts = present.remote.parts
        if present.remote.state is not RemoteState.PARTIAL or not isinstance(parts, PartList) or len(parts) < count:
            return None
        if parts[count - 1].end_offset != segment.remote.commit_offset:
            return None  # they were replaced by others since
        segment = replace(segment, remote=replace(segment.remote, parts=parts.first(count)))
    return SegmentChanged(segment)
