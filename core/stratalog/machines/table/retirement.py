"""Transitions of the shard table when nodes leave (docs/scaling-spec.md).

The plan of a retirement rests on a snapshot that may be old, and on what nodes have said. So each step names the record
that it has seen, and the one that cannot be taken back looks itself, in its transaction, whether the node has the last
readable copy of anything.
Pure functions of one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from stratalog.machines.copies.leaving import Need, is_between_holders, lost_of, need_of
from stratalog.machines.copies.wanted_copies import wanted_copies
from stratalog.machines.reading.bucket_reads import is_readable_without_nodes, reads_bucket, reads_by_default
from stratalog.machines.table.bounds import MAX_KEY_CHARACTERS, MAX_SEGMENTS_NAMED, check_names, is_object_key
from stratalog.machines.table.given_up import give_up_open
from stratalog.machines.table.lives import end_life
from stratalog.machines.table.locks import end_leases, free_lock
from stratalog.machines.table.mount_ends import has_directory
from stratalog.machines.table.mounts import lives_changed
from stratalog.machines.table.records import NodeEntry
from stratalog.machines.table.segments import without_copies
from stratalog.machines.table.state import RECORDS_PER_STEP, Steps, TableState, TableTransaction
from stratalog.model.commands.retirement_commands import (
    AdvanceRetirement,
    CancelRetirement,
    GiveUpOpen,
    ReleaseNode,
    ReportInventory,
    ReportSighting,
    RetirementCommand,
    RetireNode,
)
from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from stratalog.model.metadata import life_name
from stratalog.model.mounts import data_set_name
from stratalog.model.retirement import (
    MAX_GIVEN_UP_LISTED,
    LostRange,
    Retirement,
    RetireMode,
    RetireStep,
    Sighting,
)
from stratalog.model.segment import Segment

_LISTED_UNCONFIRMED = 10


def perform(tx: TableTransaction, command: RetirementCommand) -> Steps[Retirement | Segment | bool | None]:
    match command:
        case RetireNode():
            return retire_node(tx, command)
        case CancelRetirement():
            cancel_retirement(tx, command)
        case ReportSighting():
            report_sighting(tx, command)
        case ReportInventory():
            report_inventory(tx, command)
        case AdvanceRetirement():
            advance_retirement(tx, command)
        case ReleaseNode():
            return (yield from release_node(tx, command))
        case GiveUpOpen():
            return give_up_open(tx, command)
        case _:
            assert_never(command)
    return None


def retire_node(tx: TableTransaction, command: RetireNode) -> Retirement:
    """Note the wish. Nothing is cordoned before the checks have passed."""
    known = _known(tx, command.node_id)
    storage_id, forced = known.info.storage_id, command.force_storage_id
    if forced is not None and forced != storage_id:
        raise InvalidRequest(
            f"node {command.node_id} has the storage id {storage_id}, and {forced:.80} was spelled out: see `stratalog "
            "nodes list`; nothing was given up"
        )
    old = known.retirement
    if old is not None and old.step.is_released:
        return old
    if forced is not None and known.is_alive:
        raise InvalidRequest(
            f"node {command.node_id} is alive, so nothing that it has is lost: retire it without force, or stop it "
            "first, if its disk is gone"
        )
    if forced is not None and command.force_absence not in (None, known.absences):
        raise InvalidRequest(
            f"node {command.node_id} came back since its absence {command.force_absence}, which the force is about; "
            f"this is its absence {known.absences}: decide again, nothing was given up"
        )
    if old is not None and old.mode is not command.mode:
        raise Conflict(
            f"node {command.node_id} is being retired in {old.mode} mode already (step {old.step}): cancel that first"
        )
    begun = old or Retirement(storage_id, command.mode, RetireStep.PREFLIGHT, tx.now_ms, tx.now_ms)
    wished = replace(begun, is_forced=begun.is_forced or forced is not None)
    if wished != old:
        tx.put_node(replace(known, retirement=wished))
    return wished


def cancel_retirement(tx: TableTransaction, command: CancelRetirement) -> None:
    known = _known(tx, command.node_id)
    old = known.retirement
    if old is None:
        return
    if old.step.is_released:
        raise Conflict(
            f"node {command.node_id} was released at step {old.step}: its write lock is another's to take, so its "
            "retirement is not taken back; capacity comes back as a new node, on a new data directory"
        )
    tx.put_node(replace(known, retirement=None))


def report_sighting(tx: TableTransaction, command: ReportSighting) -> None:
    """Who stays has looked; of a volume its own node."""
    if command.caller is None:
        raise InvalidRequest("a sighting must name the life of the node that looked")
    if len(command.unconfirmed) > MAX_SEGMENTS_NAMED or command.unconfirmed_count < len(command.unconfirmed):
        raise LimitExceeded(f"{len(command.unconfirmed)} segments are named: name the first, and count the others")
    check_names(f"the sighting of node {command.node_id}", (command.words, command.storage_id))
    known = _waited_for(tx, command.node_id, command.storage_id, command.begun_ms, RetireStep.VERIFY)
    if known is None or known.retirement is None:
        return
    by_node, old = command.caller.node_id, known.retirement
    if command.seen_ms != old.last_check_ms:
        return  # who looked next has waited since it saw that one, whatever the service's clock did
    if (by_node == command.node_id) is not (old.mode is RetireMode.VOLUME):
        return
    if by_node != command.node_id and not tx.state.is_staying(by_node):
        return
    seen = Sighting(
        by_node,
        tx.now_ms,
        command.segments,
        command.unconfirmed[:_LISTED_UNCONFIRMED],
        command.unconfirmed_count,
        command.is_differing,
        command.words,
    )
    kept = _kept_sightings(old.sightings, seen, tx.now_ms)
    tx.put_node(replace(known, retirement=replace(old, sightings=kept)))


def _kept_sightings(kept: tuple[Sighting, ...], seen: Sighting, now_ms: int) -> tuple[Sighting, ...]:
    """The first of those that were clean in a row stays: who looks often is not kept waiting forever. Not one that did
    not see all that this one saw: it turned up since. Nor one from before the clock was set back, for this one would be
    apart from it only once the clock has come there again. Beside a first clean one stays the one before that was not,
    so that a node that cannot see is not asked again at once."""
    if not seen.is_clean or not kept:
        return (seen,)
    if not kept[-1].is_clean:
        return kept[-1], seen
    first = next(one for one in kept if one.is_clean)
    return (first, seen) if seen.segments <= first.segments and first.at_ms <= now_ms else (seen,)


def report_inventory(tx: TableTransaction, command: ReportInventory) -> None:
    if not is_object_key(command.key):
        raise InvalidRequest(f"an object's key has 1 to {MAX_KEY_CHARACTERS} characters, not {len(command.key)}")
    known = _waited_for(tx, command.node_id, command.storage_id, command.begun_ms, RetireStep.SNAPSHOT)
    if known is not None and known.retirement is not None and known.retirement.inventory_key is None:
        tx.put_node(replace(known, retirement=replace(known.retirement, inventory_key=command.key)))


def advance_retirement(tx: TableTransaction, command: AdvanceRetirement) -> None:
    """Where it stands by now. What was seen is dropped where that is gone back behind."""
    known = tx.state.nodes.get(command.node_id)
    if known is None or known.retirement is None or known.retirement != command.seen:
        return
    old, step = known.retirement, command.step
    if step.is_released is not old.step.is_released or step is RetireStep.RELEASE:
        return  # that is `release_node`'s alone
    wait = command.wait
    if wait is not None and old.wait is not None and wait.reason is old.wait.reason:
        wait = replace(wait, since_ms=old.wait.since_ms)
    changed = replace(old, step=step, wait=wait)
    if step is not old.step:
        changed = replace(changed, step_since_ms=tx.now_ms)
    if _order(step) < _order(RetireStep.VERIFY):
        changed = replace(changed, sightings=())
    if _order(step) <= _order(RetireStep.VERIFY):
        changed = replace(changed, inventory_key=None)  # of what there was then
    if _order(old.step) < _order(RetireStep.CORDON) <= _order(step):
        _narrow_own_topics(tx, command.node_id)
    if changed != old:
        tx.put_node(replace(known, retirement=changed))


def _order(step: RetireStep) -> int:
    return list(RetireStep).index(step)


def _narrow_own_topics(tx: TableTransaction, leaving: int) -> None:
    """The service's own topics have no more replicas than nodes stay: they follow the nodes, up and down."""
    staying = sum(not entry.is_leaving for node_id, entry in tx.state.nodes.items() if node_id != leaving)
    for topic in [topic for topic in tx.state.topics.values() if topic.is_internal]:
        if topic.replication_factor > max(staying, 1):
            tx.put_topic(replace(topic, replication_factor=max(staying, 1)))


def release_node(tx: TableTransaction, command: ReleaseNode) -> Steps[bool]:
    """The point of no return: it is not a member any more, everything that it still sends is fenced, and another node
    may take its lock."""
    node_id = command.node_id
    known = tx.state.nodes.get(node_id)
    if known is None or known.retirement is None:
        return False
    old = known.retirement
    if old.step.is_released:
        return True
    if old != command.seen:
        return False
    gives_up = old.is_forced and not known.is_alive
    if not gives_up and any(is_between_holders(one.retirement, tx.now_ms) for one in tx.state.nodes.values()):
        return False
    staying_count = tx.state.staying_count
    by_default = reads_by_default(entry.node for entry in tx.state.nodes.values())
    held: list[Segment] = []
    listed = 0
    lost: list[LostRange] = []
    for number, segment in enumerate(_segments(tx), 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        topic = tx.state.topic(segment.key.topic_id)
        wanted = min(wanted_copies(topic, segment), staying_count)
        may_read = reads_bucket(topic.settings, by_default=by_default)
        need = need_of(segment, node_id, old.mode, wanted, tx.state.is_staying, may_read_bucket=may_read)
        if need is Need.OPEN or (need in (Need.THIN, Need.ONLY_HERE) and not gives_up):
            return False
        listed += need is not Need.NONE and segment.end_offset != segment.base_offset
        if need is Need.ONLY_HERE and not segment.is_wholly_committed and not _is_elsewhere(tx.state, segment, node_id):
            lost.append(lost_of(segment))
        if need is not Need.NONE and node_id in segment.local_nodes and old.mode is RetireMode.OFFLOAD:
            held.append(segment)
    if old.sightings and not gives_up and listed > old.sightings[-1].segments:
        return False  # one was found after the last check
    for number, segment in enumerate(held, 1):
        if number % RECORDS_PER_STEP == 0:
            yield
        others = tuple(node for node in segment.local_nodes if node != node_id)
        if others or is_readable_without_nodes(segment, may_read_bucket=True):  # the last copy is named, or stored
            tx.replace_segment(segment, without_copies(segment, others))
    life = life_name(node_id, known.node_epoch)
    released = replace(_with_lost(old, lost), step=RetireStep.RELEASE, step_since_ms=tx.now_ms, wait=None)
    tx.put_node(
        replace(known, node_epoch=known.node_epoch + 1, is_alive=False, token=0, start_id="", retirement=released)
    )
    end_leases(tx, life)
    free_lock(tx, data_set_name(node_id))
    yield from end_life(tx, node_id)
    lives_changed(tx)
    return True


def _with_lost(old: Retirement, lost: list[LostRange]) -> Retirement:
    """A segment that was given up while it was open counts once, with all of it that is lost now."""
    again = {one.segment for one in lost}
    listed = [one for one in old.given_up if one.segment not in again]
    return replace(
        old,
        given_up=(*listed, *lost)[:MAX_GIVEN_UP_LISTED],
        given_up_count=old.given_up_count - (len(old.given_up) - len(listed)) + len(lost),
    )


def _is_elsewhere(state: TableState, segment: Segment, node_id: int) -> bool:
    """Whether a living node has it, or a directory that counts as a copy."""
    return any(state.is_alive(one) or has_directory(state, one) for one in segment.local_nodes if one != node_id)


def _segments(tx: TableTransaction) -> Iterator[Segment]:
    for entry in tx.state.shards.values():
        for epoch in range(entry.first_epoch, entry.next_epoch):
            yield entry.segments[epoch]


def _known(tx: TableTransaction, node_id: int) -> NodeEntry:
    known = tx.state.nodes.get(node_id)
    if known is None:
        raise NotFound(f"node {node_id} was never registered: see `stratalog nodes list`")
    return known


def _waited_for(
    tx: TableTransaction, node_id: int, storage_id: str, begun_ms: int, step: RetireStep
) -> NodeEntry | None:
    """The node's entry, if its retirement is the one that was meant, and stands there."""
    known = tx.state.nodes.get(node_id)
    if known is None or known.retirement is None:
        return None
    old = known.retirement
    return known if (old.storage_id, old.begun_ms, old.step) == (storage_id, begun_ms, step) else None
