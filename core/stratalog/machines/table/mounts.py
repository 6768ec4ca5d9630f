"""Mounts in the shard table: who looks after the data set of a node that is gone, and under which token.

The table chooses the holder itself, in the transaction that tells that there is none any more: the lock goes to a
living node with its epoch + 1, and that epoch is the mount's token. So there is one holder at most at any time, an
earlier one is refused whatever it believes, and one that dies is replaced with the change that tells of its death.
The holder then says that it serves (`TakeMount`); until then the mount is TAKING.
Pure functions of one transaction. Cost: O(mounts) per change of lives, O(nodes) per choice.
Source: docs/scaling-spec.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from stratalog.machines.table.bounds import MAX_LOCKS, check_names
from stratalog.machines.table.locks import NOBODY, earlier_holders
from stratalog.machines.table.records import NodeEntry
from stratalog.machines.table.state import TableState, TableTransaction
from stratalog.model.addresses import LAST_PORT, is_host
from stratalog.model.commands.mount_commands import (
    BeginMount,
    CloseVolume,
    DoubtMount,
    MoveMount,
    OpenVolume,
    ReleaseMount,
    TakeMount,
)
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, LimitExceeded, NotFound
from stratalog.model.metadata import Life, Lock, life_name
from stratalog.model.mounts import Mount, MountMode, MountState, Volume, data_set_name

MAX_MOUNTS: Final = 10_000
MOUNT_WEIGHT: Final = 1
"""Of a mount in the load of a node, beside its active segments."""


# Commands -----------------------------------------------------------------------------------------------------------
def begin_mount(tx: TableTransaction, command: BeginMount) -> Mount:
    """The data set of a node that is over goes to another."""
    name = data_set_name(command.node_id)
    known = tx.state.mounts.get(name)
    if known is not None:
        if (known.storage_id, known.mode) != (command.storage_id, command.mode):
            raise Conflict(
                f"{name} is mounted in {known.mode} mode, of storage {known.storage_id}: end that mount first, or ask "
                "for it as it is"
            )
        return known
    entry = tx.state.nodes.get(command.node_id)
    if entry is None:
        raise NotFound(f"node {command.node_id} was never registered: there is nothing of it to be mounted")
    if entry.info.storage_id != command.storage_id:
        raise Conflict(
            f"node {command.node_id} has storage {entry.info.storage_id}, not {command.storage_id}: read its record "
            "again"
        )
    _check_over(tx, entry)
    if entry.retirement is not None and entry.retirement.is_volume_lost:
        raise Conflict(f"the directory of node {command.node_id} was given up by force: nothing of it is mounted again")
    if len(tx.state.mounts) >= MAX_MOUNTS or (name not in tx.state.locks and len(tx.state.locks) >= MAX_LOCKS):
        raise LimitExceeded(f"{name} cannot be mounted: there are {len(tx.state.mounts)} mounts already, end some")
    mount = Mount(
        name,
        command.mode,
        command.node_id,
        command.storage_id,
        MountState.WAITING,
        _token(tx.state, name),
        tx.now_ms,
        entry.info.rack,
    )
    return _give(tx, mount, _choice(tx.state, mount))


def take_mount(tx: TableTransaction, command: TakeMount) -> Mount:
    """The holder serves it, or asks whether it still may."""
    return _in_state(tx, command, MountState.SERVING)


def doubt_mount(tx: TableTransaction, command: DoubtMount) -> Mount:
    """The holder does not serve it now."""
    return _in_state(tx, command, MountState.TAKING)


def _in_state(tx: TableTransaction, command: TakeMount | DoubtMount, state: MountState) -> Mount:
    mount = _mount(tx.state, command.name)
    if not _is_held_by(mount, command.caller, command.token):
        raise Fenced(
            f"mount {mount.name} is held by {_holder_words(mount)} under fencing epoch {mount.token}, not by "
            f"{_caller_words(command.caller)} under fencing epoch {command.token}: leave its data alone"
        )
    if isinstance(command, DoubtMount) and command.start_id is not None:
        is_read_by_it = mount.volume is not None and mount.volume.start_id == command.start_id
        if not is_read_by_it:  # that one process gave no answer says nothing of the next
            return mount
    changed = replace(mount, state=state, is_doubted=state is MountState.TAKING)
    if changed != mount:
        tx.put_mount(changed)
    return changed


def release_mount(tx: TableTransaction, command: ReleaseMount) -> None:
    """The holder cannot: another, if there is one, else it shall try again later."""
    mount = tx.state.mounts.get(command.name)
    if mount is None or mount.holder is None or not _is_held_by(mount, command.caller, command.token):
        return
    others = _choice(tx.state, mount, {mount.holder})
    _give(tx, mount, others or _choice(tx.state, mount))


def move_mount(tx: TableTransaction, command: MoveMount) -> Mount:
    """Another node, on a person's word."""
    mount = _mount(tx.state, command.name)
    if mount.mode is MountMode.HAND_MADE:
        raise Conflict(
            f"mount {mount.name} was created by a user: the leader of each shard serves it, so there is no holder"
        )
    if command.node_id is None:
        chosen = _choice(tx.state, mount, {mount.holder} if mount.holder is not None else ())
        if chosen is None:
            raise Conflict(f"mount {mount.name}: no other living node can hold it: start one")
        return _give(tx, mount, chosen)
    if command.node_id == mount.holder:
        return mount
    chosen = next((life for life in _able(tx.state, mount) if life.node_id == command.node_id), None)
    if chosen is None:
        raise Conflict(
            f"mount {mount.name}: node {command.node_id} is not alive, is on its way out, or is the one whose data it "
            "is: name another"
        )
    return _give(tx, mount, chosen)


def open_volume(tx: TableTransaction, command: OpenVolume) -> Mount:
    """Where the retired node's directory is read. The holder looks whether it is."""
    if not is_host(command.host) or not 0 < command.port <= LAST_PORT:
        raise InvalidRequest(
            f"a volume must name the host and the port at which other nodes reach it, not {command.host}:{command.port}"
        )
    check_names(f"the volume of node {command.node_id}", (command.host, command.storage_id, command.start_id))
    mount = _volume(tx.state, command.node_id)
    if mount.storage_id != command.storage_id:
        raise Conflict(
            f"mount {mount.name} is of storage {mount.storage_id}, and this directory is storage {command.storage_id}: "
            "start it with --data of the node that was retired"
        )
    opened = Volume(command.host, command.port, command.start_id)
    if mount.volume != opened:
        state = MountState.TAKING if mount.holder is not None else MountState.WAITING
        mount = replace(mount, volume=opened, state=state, is_doubted=False)
        tx.put_mount(mount)
    return mount


def close_volume(tx: TableTransaction, command: CloseVolume) -> None:
    """It is read nowhere until it is opened again."""
    mount = tx.state.mounts.get(data_set_name(command.node_id))
    if mount is not None and mount.volume is not None and mount.volume.start_id == command.start_id:
        state = MountState.TAKING if mount.holder is not None else MountState.WAITING
        tx.put_mount(replace(mount, volume=None, state=state, is_doubted=False))


def lives_changed(tx: TableTransaction) -> None:
    """A mount whose holder is dead, or has begun another life, gets a new holder; so does one that waits for a
    holder."""
    held, able = _held(tx.state), _living(tx.state)  # once: with thousands of mounts each choice would go over all
    for mount in list(tx.state.mounts.values()):
        if mount.mode is MountMode.HAND_MADE:
            continue
        entry = tx.state.nodes.get(mount.holder) if mount.holder is not None else None
        if entry is None or not entry.is_alive:
            chosen = _choice(tx.state, mount, held=held, living=able)
            if chosen is not None or mount.holder is not None:
                _give(tx, mount, chosen)
                held[mount.holder] -= 1
                held[None if chosen is None else chosen.node_id] += 1
        elif entry.node_epoch != mount.holder_epoch:
            _give(tx, mount, entry.life)


def refuse_if_mounted(state: TableState, node_id: int) -> None:
    """The node whose data set another holds must not come back: what it would write is another's to write."""
    mount = state.mounts.get(data_set_name(node_id))
    if mount is not None:
        raise Fenced(
            f"node {node_id} was retired: its data set is mounted in {mount.mode} mode, held by "
            f"{_holder_words(mount)}. Do not start it again on storage {mount.storage_id}; give this machine an empty "
            "data directory and a node.id that was never used"
        )


# Parts --------------------------------------------------------------------------------------------------------------
def _check_over(tx: TableTransaction, entry: NodeEntry) -> None:
    node_id = entry.info.node_id
    if entry.is_alive:
        raise Conflict(f"node {node_id} is alive: retire it, its data set is its own until then")
    lock = tx.state.locks.get(data_set_name(node_id))
    if lock is not None and lock.holder != NOBODY and lock.expires_ms > tx.now_ms:
        raise Conflict(
            f"write lock {lock.name} is held by {lock.holder} for another {lock.expires_ms - tx.now_ms} ms: wait, then "
            "ask again"
        )


def _choice(
    state: TableState,
    mount: Mount,
    without: Collection[int] = (),
    *,
    held: Counter[int | None] | None = None,
    living: Sequence[Life] | None = None,
) -> Life | None:
    """The least loaded, those where the retired node stood last. `held`, `living`: as `_held` and `_living` say."""
    counts = _held(state) if held is None else held
    known = state.mounts.get(mount.name)
    own = known.holder if known is not None else None

    def rank(life: Life) -> tuple[bool, int, int]:
        rack = state.nodes[life.node_id].info.rack
        others = counts[life.node_id] - (life.node_id == own)
        load = state.load.get(life.node_id, 0) + MOUNT_WEIGHT * others
        return rack is not None and rack == mount.rack, load, life.node_id

    able = _able(state, mount, living)
    return min((life for life in able if life.node_id not in without), key=rank, default=None)


def _held(state: TableState) -> Counter[int | None]:
    """How many mounts each node holds."""
    return Counter(mount.holder for mount in state.mounts.values())


def _living(state: TableState) -> list[Life]:
    """Of all that may hold mounts."""
    return [state.nodes[info.node_id].life for info in state.hosts(1)]


def _able(state: TableState, mount: Mount, living: Sequence[Life] | None = None) -> list[Life]:
    return [life for life in (_living(state) if living is None else living) if life.node_id != mount.node_id]


def _give(tx: TableTransaction, mount: Mount, life: Life | None) -> Mount:
    """Under the next token; without a holder under the last one, which no node has any more."""
    if life is None:
        mount = replace(mount, state=MountState.WAITING, holder=None, holder_epoch=0, is_doubted=False)
        _put_lock(tx, mount.name, NOBODY, mount.token)
    else:
        token = _token(tx.state, mount.name) + 1
        mount = replace(
            mount,
            state=MountState.TAKING,
            token=token,
            holder=life.node_id,
            holder_epoch=life.epoch,
            is_doubted=False,
        )
        _put_lock(tx, mount.name, f"{life_name(life.node_id, life.epoch)}/mount", token)
    tx.put_mount(mount)
    return mount


def _token(state: TableState, name: str) -> int:
    lock = state.locks.get(name)
    return lock.epoch if lock is not None else 0


def free_mount(tx: TableTransaction, mount: Mount) -> None:
    """It is no more, and its lock is free."""
    _put_lock(tx, mount.name, NOBODY, mount.token)
    tx.drop_mount(mount.name)


def _put_lock(tx: TableTransaction, name: str, holder: str, epoch: int) -> None:
    """It has no lease: the table itself gives it on. Who held it when it was the node's own stays remembered."""
    known = tx.state.locks.get(name)
    earlier: tuple[str, ...] = ()
    if known is not None:
        earlier = known.earlier if name in tx.state.mounts else earlier_holders(known)
    tx.put_lock(Lock(name, holder, epoch, 0, earlier))


def _volume(state: TableState, node_id: int) -> Mount:
    mount = state.mounts.get(data_set_name(node_id))
    if mount is None:
        entry = state.nodes.get(node_id)
        if entry is not None and entry.retirement is not None and entry.retirement.is_volume_lost:
            raise NotFound(
                f"the directory of node {node_id} was given up by force when its mount was ended: what it alone had "
                f"counts as lost (`stratalog nodes status {node_id}`), and nothing is read from it any more"
            )
        raise NotFound(
            f"the data set of node {node_id} is not mounted: only what was retired in volume mode is read from its "
            f"directory (`stratalog nodes retire {node_id} --mode volume`)"
        )
    if mount.mode is not MountMode.VOLUME:
        raise Conflict(
            f"mount {mount.name} is in {mount.mode} mode: what node {node_id} held is read from the object store, and "
            "its directory is not needed"
        )
    return mount


def _mount(state: TableState, name: str) -> Mount:
    mount = state.mounts.get(name)
    if mount is None:
        raise NotFound(f"there is no mount {name!r:.80} (any more): `stratalog mounts list` shows those that are there")
    return mount


def _is_held_by(mount: Mount, caller: Life | None, token: int) -> bool:
    return caller == Life(mount.holder or 0, mount.holder_epoch) and mount.holder is not None and token == mount.token


def _holder_words(mount: Mount) -> str:
    return "nobody" if mount.holder is None else f"node {mount.holder} in its life {mount.holder_epoch}"


def _caller_words(caller: Life | None) -> str:
    return "one that names no life" if caller is None else f"node {caller.node_id} in its life {caller.epoch}"
