"""Write locks and producer ids in the shard table.

A lock's epoch is the truth: it grows with each new holder, and a deposed holder is refused by it. Its expiry only says
from when on another may take it, so nothing depends on two clocks agreeing, and a lease may end early when its holder
is known to be over.
A released lock stays listed without a holder: its epoch must never come again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from stratalog.machines.table.bounds import MAX_LEASE_MS, MAX_LOCKS, MAX_NAME_CHARACTERS
from stratalog.machines.table.state import TableTransaction
from stratalog.machines.tiering.chunk_merging import COMPACTION_LOCK
from stratalog.machines.tiering.upload_duty import SWEEPER
from stratalog.model.commands.table_commands import AcquireLock, AllocateProducerIds, ProducerIdBlock, ReleaseLock
from stratalog.model.errors import Conflict, Fenced, InvalidRequest, LimitExceeded
from stratalog.model.metadata import Lock
from stratalog.model.mounts import node_of_data_set

NOBODY: Final = ""
EARLIER_HOLDERS: Final = 16
"""So many of them a lock remembers unasked."""
MAX_LASTING_HOLDERS: Final = 128
"""So many more when it is asked to."""
MAX_PRODUCER_ID: Final = 2**63 - 1
MAX_PRODUCER_IDS_PER_BLOCK: Final = 1_000_000


_DISK_PREFIX: Final = "disk/"


def disk_lock(storage_id: str) -> str:
    """The lock by which a rebuild of the metadata keeps a disk out: its lease never ends, and no node holds it. The
    rebuild makes the record itself, and no caller can ask for one: no lock is ever forgotten."""
    return f"{_DISK_PREFIX}{storage_id}"


def acquire_lock(tx: TableTransaction, command: AcquireLock) -> Lock:
    """Take or renew."""
    for text in (command.name, command.holder):
        if not 0 < len(text) <= MAX_NAME_CHARACTERS:
            raise InvalidRequest(
                f"a lock and its holder need names of 1 to {MAX_NAME_CHARACTERS} characters, not {text!r:.80}"
            )
    if not 0 < command.ttl_ms <= MAX_LEASE_MS:
        raise InvalidRequest(
            f"lock {command.name!r}: a lease lasts 1 to {MAX_LEASE_MS} ms, not {command.ttl_ms}: renew it meanwhile"
        )
    if len(command.lasting) > MAX_LASTING_HOLDERS or any(
        not 0 < len(ending) <= MAX_NAME_CHARACTERS for ending in command.lasting
    ):
        raise InvalidRequest(
            f"lock {command.name!r}: at most {MAX_LASTING_HOLDERS} endings of 1 to {MAX_NAME_CHARACTERS} characters "
            f"can be asked to last, not {len(command.lasting)}"
        )
    if command.name.startswith(_DISK_PREFIX):
        raise InvalidRequest(
            f"lock {command.name!r:.80} would keep a disk out for good: only a rebuild makes such locks"
        )
    if (mount := tx.state.mounts.get(command.name)) is not None:
        raise Conflict(
            f"lock {command.name!r} is that of a mounted data set, held by "
            f"{'nobody' if mount.holder is None else f'node {mount.holder}'} until the mount ends: it passes on by "
            "`stratalog mounts move`"
        )
    known = tx.state.locks.get(command.name)
    if command.renews and (known is None or (known.holder, known.epoch) != (command.holder, command.renews)):
        raise Conflict(
            f"lock {command.name!r} is not held by {command.holder!r} under epoch {command.renews} any more, so there "
            "is nothing to renew: ask for it anew"
        )
    if known is None and command.holder == SWEEPER and not _may_have_written(tx, command.name):
        raise Conflict(f"lock {command.name!r:.80} is of a node that was never registered: there is nothing to sweep")
    if known is None and len(tx.state.locks) >= MAX_LOCKS:
        raise LimitExceeded(f"lock {command.name!r}: there are {MAX_LOCKS} locks already, and none is ever forgotten")
    expires_ms = tx.now_ms + command.ttl_ms
    if known is None:
        lock = Lock(command.name, command.holder, 1, expires_ms)
    elif known.holder == command.holder:
        lock = replace(known, expires_ms=max(expires_ms, known.expires_ms))
    elif known.holder == NOBODY or known.expires_ms <= tx.now_ms:
        lock = Lock(command.name, command.holder, known.epoch + 1, expires_ms, _remembered(known, command.lasting))
    else:
        raise Conflict(
            f"lock {command.name!r} is held by {known.holder!r} for another {known.expires_ms - tx.now_ms} ms: wait, "
            "then ask again"
        )
    tx.put_lock(lock)
    return lock


def _may_have_written(tx: TableTransaction, name: str) -> bool:
    return name == COMPACTION_LOCK or node_of_data_set(name) in tx.state.nodes


def release_lock(tx: TableTransaction, command: ReleaseLock) -> None:
    """Give a lock back. One that is gone already, or has passed to another, is left as it is."""
    known = tx.state.locks.get(command.lock.name)
    if command.lock.name in tx.state.mounts:
        return
    if known is not None and (known.epoch, known.holder) == (command.lock.epoch, command.lock.holder):
        tx.put_lock(replace(known, holder=NOBODY, expires_ms=0, earlier=earlier_holders(known)))


def free_lock(tx: TableTransaction, name: str) -> None:
    """Take a lock from its holder, whose further writes are fenced."""
    known = tx.state.locks.get(name)
    if known is not None and known.holder != NOBODY:
        tx.put_lock(replace(known, holder=NOBODY, expires_ms=0, earlier=earlier_holders(known)))


def earlier_holders(known: Lock) -> tuple[str, ...]:
    """The earlier holders of a lock that is taken now."""
    return known.earlier if known.holder == NOBODY else (*known.earlier, known.holder)


def _remembered(known: Lock, lasting: tuple[str, ...]) -> tuple[str, ...]:
    holders = earlier_holders(known)
    last = len(holders) - EARLIER_HOLDERS
    return tuple(holder for at, holder in enumerate(holders) if at >= last or holder.endswith(lasting))


def end_leases(tx: TableTransaction, life: str) -> None:
    """This life is known to be over: others need not wait for its leases to end. It holds them under its own name, or
    under one that begins with it and a slash. Its locks stay its own until another holder takes them: its writes in
    flight may succeed before, and are fenced after, as when a lease expires.
    """
    for lock in [lock for lock in tx.state.locks.values() if f"{lock.holder}/".startswith(f"{life}/")]:
        tx.put_lock(replace(lock, expires_ms=0))


def check_lock(tx: TableTransaction, lock: Lock) -> None:
    """Refuse a writer whose lock has passed on."""
    known = tx.state.locks.get(lock.name)
    if known is None or known.holder == NOBODY or (known.epoch, known.holder) != (lock.epoch, lock.holder):
        now_held = (
            "nobody" if known is None or known.holder == NOBODY else f"{known.holder!r} under epoch {known.epoch}"
        )
        raise Fenced(
            f"lock {lock.name!r} is held by {now_held}, not by {lock.holder!r} under epoch {lock.epoch}: stop "
            "writing, take "
            "the lock again and continue from the commit offsets"
        )


def allocate_producer_ids(tx: TableTransaction, command: AllocateProducerIds) -> ProducerIdBlock:
    """A block of ids never given before."""
    if not 0 < command.count <= MAX_PRODUCER_IDS_PER_BLOCK:
        raise InvalidRequest(
            f"a block of producer ids holds 1 to {MAX_PRODUCER_IDS_PER_BLOCK} of them, not {command.count}"
        )
    header = tx.state.header
    end = header.next_producer_id + command.count
    if end > MAX_PRODUCER_ID:
        raise LimitExceeded(f"producer ids are used up: {header.next_producer_id} of {MAX_PRODUCER_ID} were given")
    tx.put_header(replace(header, next_producer_id=end))
    return ProducerIdBlock(header.next_producer_id, end)
