"""Which nodes are alive: the leases that nodes keep by their heartbeats, in the memory of the leading meta service. A
lease only says when to act: its end makes the service submit a command, and never makes anything true by itself. Safety
rests on epochs, fences and compare-and-set.

The caller passes each durable change of a node, and heartbeats as they arrive, and checks the time at least every
`CHECKS_PER_LEASE`th of a lease; `now_ms` is a monotonic clock of one process. It submits what `due` returns to the
shard table, and the change that follows shows that it was noted. Invariant: a life that began, or sent a heartbeat, is
not due as lost before one whole lease has passed in which the caller checked and could receive heartbeats. Half a lease
is enough if the connection of its last heartbeat was closed since: a process that is killed closes it, a living one
opens another and sends on that. It gets the time between two checks for that, because a node that gives up an
unanswered heartbeat closes the connection before it sends the next one. A life that is lost again and again is due as
alive only after ever longer times without a gap, so that a node whose heartbeats come irregularly costs few records.
Source: docs/replication.md section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from typing import Final

from stratalog.machines.copies.disk_room import scarcity_of
from stratalog.model.commands.table_commands import NoteLives, ScarcityNoted
from stratalog.model.errors import Fenced, LeaseHeld
from stratalog.model.metadata import Life, Node, NodeInfo, Vitals

CHECKS_PER_LEASE: Final = 8
LONGEST_PROBATION: Final = 32
"""In leases: so long at most a life that is lost often is heard before that is noted."""
FORGIVEN_AFTER: Final = 64
"""In leases: for each of them in which a life was not lost, one loss before is forgotten."""


STUCK_AGAIN_AFTER: Final = 5
"""In leases: so often it is noted again that a disk makes no progress."""


@dataclass(slots=True)
class _Lease:
    life: Life
    storage_id: str
    ends_ms: int
    """Over once the clock has reached it."""
    is_noted_alive: bool
    """What metadata say."""
    has_noted_room: bool
    is_retired: bool
    has_room: bool
    """What it said itself with its last heartbeat."""
    noted_scarcity: int = 0
    can_write: bool = True
    """What it said itself with its last heartbeat."""
    has_noted_writing: bool = True
    stuck_reported_ms: int = 0
    """When it was noted, or noted again, that its disk makes no progress."""
    vitals: Vitals | None = None
    """As it told them last."""
    losses: int = 0
    """That count against it."""
    lost_ms: int = 0
    """When it was noted as lost last."""
    cut_ms: int | None = None
    """When the connection of its last heartbeat was first seen to be closed."""
    heard_ms: int | None = None
    """When its last heartbeat came; None: none came here in this life."""
    has_stopped: bool = False
    """Its last heartbeat said so."""
    welcome_ms: int = 0
    """Once it was lost: when it counts as alive again, if its lease does not end before."""


class NodeLeases:
    """The leases of all nodes, as one leader of the meta service grants them."""

    def __init__(self, lease_ms: int, nodes: Iterable[Node], now_ms: int) -> None:
        """A new leader cannot know when a node was heard last: each that was alive gets one whole lease."""
        self.lease_ms = lease_ms
        self._leases: dict[int, _Lease] = {}
        self._looked_ms = now_ms
        for node in nodes:
            self.node_changed(node, now_ms)

    # What happens -----------------------------------------------------------------------------------------------
    def node_changed(self, node: Node, now_ms: int) -> None:
        """A durable record of a node; one of a new life begins with a whole lease."""
        known = self._leases.get(node.node_id)
        if known is not None and known.life == node.life:
            if known.is_noted_alive and not node.is_alive:
                self._count_loss(known, now_ms)
            known.is_noted_alive, known.has_noted_room = node.is_alive, node.has_room
            known.noted_scarcity, known.has_noted_writing = node.scarcity, node.can_write
            return
        ends_ms = now_ms + self.lease_ms if node.is_alive else now_ms
        self._leases[node.node_id] = _Lease(
            node.life,
            node.storage_id,
            ends_ms,
            node.is_alive,
            node.has_room,
            node.is_retired,
            node.has_room,
            node.scarcity,
            node.can_write,
            node.can_write,
        )

    def _count_loss(self, lease: _Lease, now_ms: int) -> None:
        forgiven = (now_ms - lease.lost_ms) // (FORGIVEN_AFTER * max(self.lease_ms, 1))
        lease.losses, lease.lost_ms = max(0, lease.losses - forgiven) + 1, now_ms
        lease.welcome_ms = now_ms + self._probation_ms(lease)

    def _probation_ms(self, lease: _Lease) -> int:
        """Nothing for the first loss, then 2, 4, 8 ... leases."""
        return self.lease_ms * min(LONGEST_PROBATION, 2 ** min(lease.losses - 1, 30)) if lease.losses > 1 else 0

    def heartbeat_received(
        self,
        life: Life,
        now_ms: int,
        *,
        is_last: bool = False,
        has_room: bool = True,
        vitals: Vitals | None = None,
        can_write: bool = True,
    ) -> None:
        """A heartbeat. With `is_last` the node stops in order, and its lease ends at once.

        Raises: Fenced for a life that is not the present one.
        """
        known = self._leases.get(life.node_id)
        if known is None or known.life != life:
            present = "was never registered" if known is None else f"is in its life {known.life.epoch}"
            if known is not None and known.is_retired:
                present = "was retired, and another serves what it held"
            raise Fenced(
                f"life {life.epoch} of node {life.node_id} is not the present one (the node {present}): this process "
                "must stop, or register again"
            )
        known.has_room, known.can_write = has_room, can_write
        known.vitals = vitals or known.vitals
        known.cut_ms, known.heard_ms, known.has_stopped = None, now_ms, is_last
        if known.ends_ms <= now_ms:
            known.welcome_ms = now_ms + self._probation_ms(known)
        known.ends_ms = self._looked_ms if is_last else max(known.ends_ms, now_ms + self.lease_ms)

    def check_registration(self, info: NodeInfo, now_ms: int, *, is_process_over: bool) -> None:
        """Refuse a registration whose node lives elsewhere. `is_process_over`: who registers has shown that the process
        of the life before is over, so nothing is waited for. The same storage id shows nothing: the directory may be a
        copy of the one in which that process writes.

        Raises: LeaseHeld while the old life's lease lasts.
        """
        known = self._leases.get(info.node_id)
        if known is None or is_process_over or known.ends_ms <= now_ms:
            return
        where = f"storage {known.storage_id}, for at least another {known.ends_ms - now_ms} ms"
        if known.storage_id == info.storage_id:
            raise LeaseHeld(
                f"node {info.node_id} runs in another directory of {where}, so it cannot start in this one, which has "
                "the same storage id: one of the two is a copy. If that process has ended, wait and start again; if it "
                "has not, stop it first, or give this node an empty --data directory and another node.id"
            )
        raise LeaseHeld(
            f"node {info.node_id} runs on {where}, so it cannot start on {info.storage_id}: if that process has ended, "
            "wait and start again; if it has not, choose another node.id"
        )

    def excuse_silence(self, now_ms: int) -> None:
        """Heartbeats could not arrive since the last check: that time counts against no node."""
        looked_ms, self._looked_ms = self._looked_ms, now_ms
        self._renew_all(looked_ms, now_ms)

    def _renew_all(self, looked_ms: int, now_ms: int) -> None:
        """Those that were not over when it looked."""
        for lease in self._leases.values():
            if lease.ends_ms > looked_ms:
                lease.ends_ms = max(lease.ends_ms, now_ms + self.lease_ms)

    def _excuse(self, looked_ms: int, late_ms: int) -> None:
        """The caller looked so much later than it should: heartbeats waited that long in its sockets as well."""
        if late_ms > 0:
            for lease in self._leases.values():
                if lease.ends_ms > looked_ms:
                    lease.ends_ms += late_ms

    def due(self, now_ms: int, cut: Collection[int] = ()) -> NoteLives | None:
        """Look at the time: what the metadata should say otherwise than they do; None when they are right. `cut`: nodes
        whose last heartbeat came over a connection that is closed now."""
        looked_ms, self._looked_ms = self._looked_ms, now_ms
        if now_ms - looked_ms > self.lease_ms // 2:
            self._renew_all(looked_ms, now_ms)  # this process did not run, and received no heartbeats meanwhile
        else:
            self._excuse(looked_ms, now_ms - looked_ms - self.check_every_ms)
        for node_id in cut:
            known = self._leases.get(node_id)
            if known is None:
                continue
            if known.cut_ms is None:
                known.cut_ms = now_ms
            is_cut = now_ms - known.cut_ms >= self.check_every_ms
            if is_cut and now_ms < known.ends_ms <= now_ms + self.lease_ms // 2:
                known.ends_ms = now_ms
        lost: list[Life] = []
        heard: list[Life] = []
        full: list[Life] = []
        roomy: list[Life] = []
        scarce: list[ScarcityNoted] = []
        stuck: list[Life] = []
        working: list[Life] = []
        for lease in self._leases.values():
            is_alive = lease.ends_ms > now_ms
            if lease.is_noted_alive and not is_alive:
                lost.append(lease.life)
            elif is_alive and not lease.is_noted_alive and now_ms >= lease.welcome_ms:
                heard.append(lease.life)
            if is_alive and lease.has_room is not lease.has_noted_room:
                (roomy if lease.has_room else full).append(lease.life)
            if is_alive and lease.can_write and not lease.has_noted_writing:
                working.append(lease.life)
            elif is_alive and not lease.can_write and self._is_stuck_due(lease, now_ms):
                lease.stuck_reported_ms = now_ms
                stuck.append(lease.life)
            if is_alive and lease.vitals is not None:
                disk = lease.vitals
                scarcity = scarcity_of(disk.disk_free_bytes, disk.disk_total_bytes, lease.noted_scarcity)
                if scarcity != lease.noted_scarcity:
                    scarce.append(ScarcityNoted(lease.life, scarcity))
        due = NoteLives(
            tuple(lost),
            tuple(heard),
            tuple(full),
            tuple(roomy),
            tuple(scarce),
            tuple(stuck),
            tuple(working),
            tuple(self._quiet({life.node_id for life in lost}, now_ms)),
        )
        return None if due == NoteLives() else due

    def _quiet(self, lost: Set[int], now_ms: int) -> Iterable[Life]:
        """The living that may have failed together with a lost node: the connection of their last heartbeat is closed,
        as when all processes are killed, or they were heard no later than a node that fell silent, give or take the
        pauses between heartbeats, as in a power cut. A node that is alive was heard since."""
        if not lost:
            return
        ended = (self._leases[node_id] for node_id in lost)
        silent = [lease for lease in ended if not lease.has_stopped and lease.cut_ms is None]
        heard = [lease.ends_ms - self.lease_ms if lease.heard_ms is None else lease.heard_ms for lease in silent]
        since_ms = max(heard) + self.lease_ms // 2 if heard else None
        for lease in self._leases.values():
            if lease.ends_ms <= now_ms:
                continue
            is_silent = since_ms is not None and (lease.heard_ms is None or lease.heard_ms < since_ms)
            if is_silent or lease.cut_ms is not None:
                yield lease.life

    def not_noted(self, due: NoteLives) -> None:
        """It was not submitted, or perhaps not performed: what is due only once in a while stays due."""
        for life in due.stuck:
            lease = self._leases.get(life.node_id)
            if lease is not None and lease.life == life:
                lease.stuck_reported_ms -= STUCK_AGAIN_AFTER * self.lease_ms

    def _is_stuck_due(self, lease: _Lease, now_ms: int) -> bool:
        """Repeated while it lasts: other nodes may be able to lead now what they could not lead before."""
        return lease.has_noted_writing or now_ms - lease.stuck_reported_ms >= STUCK_AGAIN_AFTER * self.lease_ms

    # What is so -------------------------------------------------------------------------------------------------
    @property
    def check_every_ms(self) -> int:
        """So often the caller must look."""
        return max(1, self.lease_ms // CHECKS_PER_LEASE)

    def next_check_ms(self, now_ms: int) -> int:
        """How long the caller may wait before it looks again: not beyond the next end of a lease."""
        ends = [lease.ends_ms for lease in self._leases.values() if lease.is_noted_alive]
        return max(1, min([self.check_every_ms, *(end - now_ms for end in ends)]))

    def started(self) -> frozenset[Life]:
        """Lives of nodes that have reported their vitals: such a process knows the metadata, and has opened what it
        leads. Until then a node may not know what was changed since it registered."""
        return frozenset(lease.life for lease in self._leases.values() if lease.vitals is not None)

    def living(self, now_ms: int) -> list[Life]:
        return [lease.life for lease in self._leases.values() if lease.ends_ms > now_ms]
