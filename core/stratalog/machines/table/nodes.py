"""Transitions of the shard table that concern nodes: each registration begins a life, and every command names one.

An old life is refused by its epoch, whatever any clock says. The leases of the service's leader (`node_leases`) decide
whether a life is alive. The result is kept here, so that all see the same and a new leader continues from it.
Pure functions of one transaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from stratalog.machines.copies.disk_room import SCARCEST
from stratalog.machines.table.bounds import check_names
from stratalog.machines.table.lives import begin_life, end_life, hand_over, resume_life
from stratalog.machines.table.locks import disk_lock, end_leases
from stratalog.machines.table.mounts import lives_changed, refuse_if_mounted
from stratalog.machines.table.records import NodeEntry
from stratalog.machines.table.recovery import decide_direct_recoveries
from stratalog.machines.table.state import Steps, TableTransaction
from stratalog.model.addresses import LAST_PORT, is_host
from stratalog.model.commands.table_commands import NoteLives, RegisterNode
from stratalog.model.errors import Conflict, Fenced, InvalidRequest
from stratalog.model.listeners import why_not_registered
from stratalog.model.metadata import Life, Registration, life_name
from stratalog.model.retirement import Retirement

_MAX_INT32: Final = 2**31 - 1
_MOST_PAST_STARTS: Final = 8


def register_node(tx: TableTransaction, command: RegisterNode) -> Steps[Registration]:
    """A node begins a life; its epoch grows by one each time.

    The service has waited for the end of the old life's lease, unless who registers has shown that its process is over
    (`is_process_over`).
    """
    node = command.node
    if not 0 <= node.node_id <= _MAX_INT32:
        raise InvalidRequest(f"node id {node.node_id} is not between 0 and {_MAX_INT32}: choose another node.id")
    if not node.storage_id or not is_host(node.host) or not 0 < node.port <= LAST_PORT:
        raise InvalidRequest(
            f"node {node.node_id} must name its storage id, and a host and port that others connect to, not {node}"
        )
    wrong = why_not_registered(node.listeners)
    if wrong is not None:
        raise InvalidRequest(f"node {node.node_id} cannot register: {wrong}")
    names = (node.storage_id, node.host, node.rack or "", command.start_id, command.boot_id, command.seat)
    check_names(f"node {node.node_id}", (*names, *command.earlier_starts))
    refuse_if_mounted(tx.state, node.node_id)
    if disk_lock(node.storage_id) in tx.state.locks:
        raise Conflict(
            f"node {node.node_id} comes with a disk from before the metadata were rebuilt from the bucket (storage id "
            f"{node.storage_id}): they do not count on what it holds. Start the node on an empty --data directory, and "
            "keep this one until you know that nothing is missed"
        )
    known = tx.state.nodes.get(node.node_id)
    if known is not None and command.start_id and (known.start_id, known.info) == (command.start_id, node):
        return Registration(tx.state.header.cluster_id, known.node_epoch, known.token, known.is_continued)
    if known is not None and command.start_id in known.past_starts:
        raise Fenced(
            f"a process of node {node.node_id} that began later has registered already: this request of start "
            f"{command.start_id} came late"
        )
    if known is not None and known.retirement is not None and known.retirement.step.is_released:
        raise Fenced(
            f"node {node.node_id} was retired ({known.retirement.mode} mode, its disk was {known.info.storage_id}): "
            "another node serves what it held, so it is not registered again. Start a new node under another node.id, "
            "on an empty data directory"
        )
    token = tx.new_id.int & (2**63 - 1)
    entry = NodeEntry(node, known.node_epoch + 1 if known else 1, True, command.start_id, token, command.boot_id)
    entry = replace(entry, seat=command.seat, past_starts=_past_starts(known, command))
    if known is not None and known.info.storage_id == node.storage_id:
        # no person retired the other disk, and its room is unknown
        entry = replace(entry, retirement=_without_force(known), scarcity=known.scarcity)
    if command.scarcity is not None:
        # With its first word: beside nodes that have told, one that has not would look emptier, and get all.
        entry = replace(entry, scarcity=min(command.scarcity, SCARCEST))
    absences = known.absences if known is not None else 0
    is_continued = known is None or continues(known, command)
    entry = replace(entry, is_flushed_by_default=_flushes_all(known, command), absences=absences)
    tx.put_node(replace(entry, is_continued=is_continued))
    if known is not None:
        is_disk_new = known.info.storage_id != node.storage_id
        if not is_disk_new:
            end_leases(tx, life_name(node.node_id, known.node_epoch))
        yield from begin_life(
            tx,
            node.node_id,
            is_disk_new=is_disk_new,
            is_continued=is_continued,
            is_tail_kept=command.stopped_epoch == known.node_epoch
            or (command.boot_id != "" and command.boot_id == known.boot_id),
            is_flushed_by_default=known.is_flushed_by_default,  # by the settings of the life that wrote it
        )
    yield from decide_direct_recoveries(tx)
    lives_changed(tx)
    return Registration(tx.state.header.cluster_id, entry.node_epoch, token, is_continued)


def continues(known: NodeEntry, command: RegisterNode) -> bool:
    """Whether the directory is the one in which the node's last life ran, and as that life left it: it names the start
    that began that life, or says that the life stopped in order. If the life's start is not known, this is unknown."""
    if known.info.storage_id != command.node.storage_id:
        return False
    is_named = not known.start_id or known.start_id in command.earlier_starts
    return is_named or command.stopped_epoch == known.node_epoch


def _past_starts(known: NodeEntry | None, command: RegisterNode) -> tuple[str, ...]:
    before = () if known is None else (*known.past_starts, known.start_id)
    past = dict.fromkeys(one for one in (*before, *command.earlier_starts) if one and one != command.start_id)
    return tuple(past)[-_MOST_PAST_STARTS:]


def is_process_over(known: NodeEntry | None, command: RegisterNode) -> bool:
    """Whether who registers shows that the process of the node's last life is over: it holds the lock that process
    held, in the same boot of the machine, or is that process, whose answer was lost."""
    if known is None:
        return True
    is_its_own = command.start_id != "" and command.start_id == known.start_id
    return is_its_own or (command.seat != "" and command.seat == known.seat)


def _flushes_all(known: NodeEntry | None, command: RegisterNode) -> bool:
    """Whether all that this life confirms of topics without a word of their own is flushed. What the life before left
    in the page cache is confirmed, too, and may not be flushed yet."""
    is_left = known is not None and not known.is_flushed_by_default and command.stopped_epoch != known.node_epoch
    return command.is_flushed_by_default and not is_left


def note_lives(tx: TableTransaction, command: NoteLives) -> Steps[None]:
    """Whether nodes are alive, as their leases say. A life that is not the present one is passed over. What a node led
    is taken from it when its lease is over."""
    noted: list[tuple[int, bool]] = []
    for lives, is_alive in ((command.lost, False), (command.heard, True)):
        for life in lives:
            known = tx.state.nodes.get(life.node_id)
            if known is not None and known.life == life and known.is_alive is not is_alive:
                retirement = _without_force(known) if is_alive else known.retirement
                absences = known.absences + (not is_alive)
                tx.put_node(replace(known, is_alive=is_alive, retirement=retirement, absences=absences))
                noted.append((life.node_id, is_alive))
    for lives, has_room in ((command.full, False), (command.roomy, True)):
        for life in lives:
            known = tx.state.nodes.get(life.node_id)
            if known is not None and known.life == life and known.has_room is not has_room:
                tx.put_node(replace(known, has_room=has_room))
    _note_writing(tx, command.stuck, can_write=False)
    _note_writing(tx, command.working, can_write=True)
    stuck = [life.node_id for life in command.stuck if _is_present(tx, life)]
    for one in command.scarce:
        known = tx.state.nodes.get(one.life.node_id)
        if known is not None and known.life == one.life and known.scarcity != one.scarcity:
            tx.put_node(replace(known, scarcity=one.scarcity))
    quiet = {life.node_id for life in command.quiet if _is_present(tx, life)}
    for node_id, is_alive in noted:  # once all of them are known: nothing may be placed on another that is lost, too
        yield from resume_life(tx, node_id) if is_alive else end_life(tx, node_id, quiet)
    for node_id in stuck:
        yield from hand_over(tx, node_id)
    if any(is_alive for _, is_alive in noted) or command.working:
        yield from decide_direct_recoveries(tx)
    if noted:
        lives_changed(tx)


def _note_writing(tx: TableTransaction, lives: tuple[Life, ...], *, can_write: bool) -> None:
    """Whether disks make progress."""
    for life in lives:
        known = tx.state.nodes.get(life.node_id)
        if known is not None and known.life == life and known.can_write is not can_write:
            tx.put_node(replace(known, can_write=can_write))


def _is_present(tx: TableTransaction, life: Life) -> bool:
    known = tx.state.nodes.get(life.node_id)
    return known is not None and known.life == life


def _without_force(known: NodeEntry) -> Retirement | None:
    """A node that is back may have all that was given up: a later death is not the one that the person decided
    about."""
    return known.retirement and replace(known.retirement, is_forced=False)


def check_life(tx: TableTransaction, caller: Life | None) -> None:
    """Refuse a node that has begun another life since."""
    if caller is None:
        return
    known = tx.state.nodes.get(caller.node_id)
    if known is None or known.node_epoch != caller.epoch:
        present = "was never registered" if known is None else f"is in its life {known.node_epoch}"
        if known is not None and known.node.is_retired:
            present = "was retired, and another serves what it held"
        raise Fenced(
            f"life {caller.epoch} of node {caller.node_id} is not the present one (the node {present}): this process "
            "must stop, or register again"
        )
