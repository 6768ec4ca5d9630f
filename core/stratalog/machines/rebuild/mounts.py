"""Rebuilds mounts, and nodes that leave or have left, from the snapshot. It restores mounts that a person made, and
each node that has left, with the mount of its data set. These wait for a holder, and a retired directory counts as a
copy of what the node had proven. A directory is not on a disk that was lost with the cluster, so data that only it has
are not given up: its segments stay as their seal records say (`machines.rebuild.shard`). Everything else is reported
(`LeftOut`), each with what to do about it.

Pure. Source: docs/backup.md section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from stratalog.machines.table.records import NodeEntry, StoredRecord
from stratalog.model.errors import InvalidRequest
from stratalog.model.metadata import Lock
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import Retirement, RetireMode, RetireStep


class LeftOutKind(StrEnum):
    MOUNT = "mount"
    RETIREMENT = "retirement"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A mount or a retirement of the snapshot that is not in the rebuilt metadata."""

    kind: LeftOutKind
    name: str
    """Of the mount; of a retirement the node's id."""
    why: str
    next_step: str


@dataclass(slots=True)
class Leavers:
    nodes: list[NodeEntry] = field(default_factory=list)
    """Nodes that have left, and are restored as such."""
    mounts: list[Mount] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    volumes: frozenset[int] = frozenset()
    """Whose directories count as copies."""

    @property
    def data_sets(self) -> list[int]:
        """The nodes whose data sets are mounted again."""
        return [one.node_id for one in self.mounts if one.mode is not MountMode.HAND_MADE]


def plan_leavers(records: Iterable[StoredRecord], nodes: Collection[int], without: Collection[int] = ()) -> Leavers:
    """`nodes` will serve the cluster, `without` are those whose retired directories a person gives up. The mounts of
    data sets still have their old tokens (`with_tokens`).

    Raises: InvalidRequest for a directory that is given up and is none, and where one of `nodes` is the id of a node
    whose directory may hold what nothing else has."""
    plan = Leavers()
    every = list(records)
    entries = {record.info.node_id: record for record in every if isinstance(record, NodeEntry)}
    kept = {
        node_id
        for node_id, entry in entries.items()
        if entry.retirement is not None and entry.retirement.step.is_released
    }
    mounted = {record.node_id for record in every if isinstance(record, Mount)}
    volumes = {node_id for node_id in kept if _is_volume(entries[node_id], is_mounted=node_id in mounted)}
    _check(volumes, nodes, without)
    for node_id, entry in sorted(entries.items()):
        if entry.retirement is None:
            continue
        if node_id in kept and node_id not in without and node_id not in nodes:
            plan.nodes.append(replace(entry, is_alive=False, token=0, start_id=""))
        else:
            plan.left_out.append(_left_out(node_id, entry.retirement, nodes, without))
    restored = {entry.info.node_id for entry in plan.nodes}
    plan.volumes = frozenset(restored & volumes)
    for mount in (record for record in every if isinstance(record, Mount)):
        if mount.mode is MountMode.HAND_MADE:
            plan.mounts.append(mount)
        elif mount.node_id in restored:
            plan.mounts.append(replace(mount, state=MountState.WAITING, holder=None, holder_epoch=0, volume=None))
        else:
            plan.left_out.append(_mount_left_out(mount, nodes, without))
    return plan


def _check(volumes: Collection[int], nodes: Collection[int], without: Collection[int]) -> None:
    for node_id in without:
        if node_id not in volumes:
            raise InvalidRequest(
                f"the snapshot of the metadata knows no directory of a node {node_id} that was retired in volume mode, "
                "so there is none to give up"
            )
    for node_id in nodes:
        if node_id in volumes and node_id not in without:
            raise InvalidRequest(
                f"node {node_id} was retired in volume mode: its directory may hold what the bucket has not, and can "
                f"be mounted again. Name another id by --nodes; if that directory is lost, add --without-volume "
                f"{node_id}"
            )


def _left_out(node_id: int, record: Retirement, nodes: Collection[int], without: Collection[int]) -> LeftOut:
    if node_id in without:
        why = "a person gave up its directory"
        next_step = "none needed: what it alone had is among what is lost"
    elif record.step.is_released:
        why = f"node {node_id} had left, and starts again under that id"
        next_step = "none needed: what it held is in the bucket, or on record as given up"
    elif node_id in nodes:
        why = f"it was at step {record.step}, and node {node_id} starts again on an empty disk"
        next_step = f"if it is to leave: `stratalog nodes retire {node_id} --mode {record.mode}`"
    else:
        why = f"it was at step {record.step}, and node {node_id} is none of the rebuilt cluster"
        next_step = "none needed: keep its disk until you know that nothing is missing"
    return LeftOut(LeftOutKind.RETIREMENT, str(node_id), why, next_step)


def _mount_left_out(mount: Mount, nodes: Collection[int], without: Collection[int]) -> LeftOut:
    if mount.node_id in without:
        why = f"a person gave up the directory of node {mount.node_id}"
        next_step = "none needed: what it alone had is among what is lost"
    elif mount.node_id in nodes:
        why = f"node {mount.node_id} starts again under that id"
        next_step = "none needed: what is in the bucket is read there"
    else:
        why = f"node {mount.node_id} never left by a retirement, and is none of the rebuilt cluster"
        next_step = (
            "none needed: what is in the bucket is read there. Keep its disk until you know that nothing is missing"
        )
    return LeftOut(LeftOutKind.MOUNT, mount.name, why, next_step)


def with_tokens(mounts: Iterable[Mount], locks: Mapping[str, Lock]) -> list[Mount]:
    """The mounts of data sets under new epochs of their locks."""
    return [one if one.mode is MountMode.HAND_MADE else replace(one, token=locks[one.name].epoch) for one in mounts]


def _is_volume(entry: NodeEntry, *, is_mounted: bool) -> bool:
    """Once its mount was ended, nothing relies on it any more."""
    record = entry.retirement
    assert record is not None, "it has left"
    return record.mode is RetireMode.VOLUME and (is_mounted or record.step is not RetireStep.DONE)
