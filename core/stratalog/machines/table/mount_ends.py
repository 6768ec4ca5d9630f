"""Ends a mount: on a person's request, and not while the mounted data include the last readable copy of anything,
unless that is given up with the directory. The transaction that ends the mount checks both, the last copies and what is
given up: data that a list showed a moment ago may have been uploaded since, or a node may read the directory again.
Pure functions of one transaction. Cost: O(shards), and O(segments) of those that list the node.
Source: docs/scaling-spec.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stratalog.machines.copies.leaving import is_kept_directory, lost_of
from stratalog.machines.reading.bucket_reads import is_readable_without_nodes, reads_bucket, reads_by_default
from stratalog.machines.table.mounts import free_mount
from stratalog.machines.table.segments import without_copies
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableState, TableTransaction
from stratalog.model.commands.mount_commands import EndMount
from stratalog.model.counting import counted
from stratalog.model.errors import Conflict, InvalidRequest
from stratalog.model.mounts import Mount, MountMode, MountState, node_of_data_set
from stratalog.model.retirement import MAX_GIVEN_UP_LISTED, Retirement, RetireStep
from stratalog.model.segment import RemoteState, Segment, SegmentState


def end_mount(tx: TableTransaction, command: EndMount) -> Steps[None]:
    """Its lock is free from now on. One that is gone is passed over."""
    mount, forced = tx.state.mounts.get(command.name), command.force_storage_id
    if forced is not None:
        _check_disk(tx.state, command.name, mount, forced)
    if mount is None:
        return
    if mount.mode is MountMode.HAND_MADE:
        tx.drop_mount(mount.name)
        return
    listed: list[Segment] = []
    only_there: list[Segment] = []
    by_default = reads_by_default(entry.node for entry in tx.state.nodes.values())
    for number, entry in enumerate(tx.state.shards.values(), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        held = [segment for segment in entry.segments.values() if mount.node_id in segment.local_nodes]
        may_read = reads_bucket(tx.state.topic(entry.key.topic_id).settings, by_default=by_default)
        only_there += [
            segment for segment in held if is_only_in(tx.state, segment, mount.node_id, may_read_bucket=may_read)
        ]
        listed += held
    if only_there and forced is None and not _is_given_up(tx.state, mount):
        raise Conflict(_why_refused(mount, only_there))
    if only_there and forced is not None:
        _check_lost(tx.state, mount, len(only_there))
    gone = [segment for segment in only_there if segment.remote.state is not RemoteState.COMPLETE]
    lost = {segment.key for segment in gone}
    for number, segment in enumerate(listed, 1):  # a directory that no node reads does not count
        if number % RECORDS_PER_STEP == 0:
            yield
        others = tuple(node for node in segment.local_nodes if node != mount.node_id)
        if others or segment.key not in lost:  # the record of lost data names the node that they were lost with
            tx.replace_segment(segment, without_copies(segment, others))
    _note(tx, mount, gone)
    free_mount(tx, mount)


def is_only_in(state: TableState, segment: Segment, node_id: int, *, may_read_bucket: bool) -> bool:
    """Whether only this node's directory has a readable copy of a sealed segment, as far as is known: a dead node may
    have lost its copy, and a directory is readable while it is mounted."""
    if segment.state is not SegmentState.SEALED:
        return False
    if is_readable_without_nodes(segment, may_read_bucket=may_read_bucket):
        return False
    return not any(state.is_alive(one) or has_directory(state, one) for one in segment.local_nodes if one != node_id)


def has_directory(state: TableState, node_id: int) -> bool:
    """Whether what that node left counts as a copy."""
    return is_kept_directory(_record(state, node_id), state.mount_of(node_id))


# Parts --------------------------------------------------------------------------------------------------------------
def _check_disk(state: TableState, name: str, mount: Mount | None, forced: str) -> None:
    """A person spelled out whose disk is lost. Raises: InvalidRequest, Conflict."""
    if mount is not None and mount.mode is MountMode.HAND_MADE:
        raise InvalidRequest(
            f"mount {name} was created by a user: it has no data of its own to give up, end it as it is"
        )
    node_id = node_of_data_set(name) if mount is None else mount.node_id
    entry = None if node_id is None else state.nodes.get(node_id)
    if mount is None and entry is None:
        raise InvalidRequest(
            f"there is no mount {name:.80}, and no node that it could be of: see `stratalog mounts list`; nothing was "
            "given up"
        )
    storage_id = mount.storage_id if mount is not None else None if entry is None else entry.info.storage_id
    if storage_id is not None and forced != storage_id:
        raise InvalidRequest(
            f"mount {name} is of the storage id {storage_id}, and {forced:.80} was spelled out: see `stratalog nodes "
            "list`; nothing was given up"
        )
    record = None if entry is None else entry.retirement
    if mount is not None:
        return
    if record is None or not record.step.is_released:
        raise Conflict(
            f"mount {name} never was, for its node was not retired: if its disk is gone, see `stratalog nodes retire "
            "--force`; nothing was given up"
        )
    if record.step is not RetireStep.DONE:
        raise Conflict(f"mount {name} has not begun yet, and will in a moment: ask again then; nothing was given up")


def _is_given_up(state: TableState, mount: Mount) -> bool:
    """Data that no node has were given up with the node, by force, and there is no directory."""
    record = _record(state, mount.node_id)
    return mount.mode is MountMode.OFFLOAD and record is not None and record.is_forced and not record.keeps_directory


def _check_lost(state: TableState, mount: Mount, count: int) -> None:
    """What is read now is not lost. Raises: Conflict."""
    alone = f"mount {mount.name}: nothing else has {counted(count, 'sealed segment')} of it"
    record = _record(state, mount.node_id)
    if record is None or not record.step.is_released:
        raise Conflict(
            f"{alone}, and node {mount.node_id} was not retired: first give it up by `stratalog nodes retire "
            f"{mount.node_id} --force {mount.storage_id}`"
        )
    if mount.volume is None:
        return
    place = f"{mount.volume.host}:{mount.volume.port}"
    if mount.state is MountState.SERVING:
        raise Conflict(
            f"{alone}, and the process at {place} reads its directory now, so it is not lost: end the mount without "
            "force once it is not needed; if the disk is going, stop that process first; nothing was given up"
        )
    if mount.state is MountState.WAITING:
        raise Conflict(
            f"{alone}, and no node is alive that could tell whether the process at {place} reads its directory: start "
            "one; nothing was given up"
        )
    if not mount.is_doubted:
        raise Conflict(
            f"{alone}, and node {mount.holder} has not looked yet whether the process at {place} reads its directory: "
            "ask again in some seconds, or stop that process if it checks its files without end; nothing was given up"
        )


def _why_refused(mount: Mount, only_there: Sequence[Segment]) -> str:
    uploader = "its holder" if mount.holder is None else f"node {mount.holder}"
    barred = sum(segment.remote.state is RemoteState.COMPLETE for segment in only_there)
    words = (
        f"mount {mount.name}: nothing else has {counted(len(only_there), 'sealed segment')} of it: wait "
        f"until {uploader} has uploaded those of topics with a remote tier, and for the retention of the others, or "
        "delete their topics"
    )
    if barred:
        words += (
            f"; {barred:,} of them are whole in the object store, where remote.read.policy=Disable lets no reader go: "
            "set remote.read.policy=NotInDisk for their topics"
        )
    if mount.state is not MountState.SERVING or mount.volume is None:
        words += (
            f"; if what node {mount.node_id} left is lost, `stratalog mounts end {mount.name} --force "
            f"{mount.storage_id}` gives them up"
        )
    return words


def _note(tx: TableTransaction, mount: Mount, lost: Sequence[Segment]) -> None:
    """In the record of the retirement, which is over: no node takes over data that nothing needs."""
    known = tx.state.nodes.get(mount.node_id)
    if known is None or known.retirement is None or not known.retirement.step.is_released:
        return
    old = known.retirement
    changed = _given_up(old, lost) if lost and (old.keeps_directory or not old.is_forced) else old
    if changed.step is not RetireStep.DONE:
        changed = replace(changed, step=RetireStep.DONE, step_since_ms=tx.now_ms, wait=None)
    if changed != old:
        tx.put_node(replace(known, retirement=changed))


def _given_up(old: Retirement, lost: Sequence[Segment]) -> Retirement:
    ranges = [lost_of(segment) for segment in lost]
    return replace(
        old,
        is_forced=True,
        is_volume_lost=old.keeps_directory,
        given_up=(*old.given_up, *ranges)[:MAX_GIVEN_UP_LISTED],
        given_up_count=old.given_up_count + len(ranges),
    )


def _record(state: TableState, node_id: int) -> Retirement | None:
    entry = state.nodes.get(node_id)
    return None if entry is None else entry.retirement
