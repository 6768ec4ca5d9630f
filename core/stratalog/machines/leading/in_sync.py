"""The in-sync replicas of one segment that its leader must wait for: the committed ISR, and undecided proposals. The
meta service decides by compare-and-set under a version. Whether it accepted a proposal is not known until the record is
read: an error, a lost answer and a conflict do not say what the record is. Until then all members of the committed ISR
and of open proposals hold the high watermark back. Only a record decides a proposal: one with a higher version than the
proposal named, or with that very version, read after the service had refused the proposal.
Source: docs/design.md section 3, rule 5; docs/replication.md section 3.
"""

from __future__ import annotations

from stratalog.machines.leading.leader_events import ProposeIsr


class InSync:
    """Invariant: one proposal is asked for at a time; `holders` are all that any ISR names which may be committed."""

    __slots__ = ("_asked", "_node_id", "_unknown", "holders", "members", "version")

    def __init__(self, node_id: int, members: tuple[int, ...], version: int) -> None:
        """`node_id`: the leader's."""
        self._node_id = node_id
        self.members = members
        """As committed, as far as was heard."""
        self.version = version
        self._asked: ProposeIsr | None = None
        """What came of it is still to be told."""
        self._unknown: tuple[ProposeIsr, ...] = ()
        """Proposals that get no further answer, and may still be accepted."""
        self.holders: tuple[int, ...] = ()
        """The followers that hold the high watermark back."""
        self._count_holders()

    @property
    def has_unknown(self) -> bool:
        return bool(self._unknown)

    def propose(self, proposal: ProposeIsr) -> bool:
        """Whether it is to be asked for. One of what is committed already decides those that are not known."""
        if self._asked is not None or (proposal.isr == self.members and not self._unknown):
            return False
        self._asked = proposal
        self._count_holders()
        return True

    def isr_committed(self, members: tuple[int, ...], version: int) -> bool:
        """The record says so, or said so once. Returns whether that is news."""
        if version <= self.version:
            return False
        self.members, self.version = members, version
        self._unknown = tuple(proposal for proposal in self._unknown if proposal.version >= version)
        if self._asked is not None and self._asked.version < version:
            self._asked = None
        self._count_holders()
        return True

    def read_back(self, proposal: ProposeIsr, members: tuple[int, ...], version: int, *, was_refused: bool) -> bool:
        """The record as it was read after the proposal was refused, or after its answer was lost. Returns whether other
        replicas may hold the high watermark back now."""
        before = self.holders
        self.isr_committed(members, version)
        if self._asked == proposal:
            self._asked = None
            if not was_refused or version != proposal.version:
                self._unknown = (*(other for other in self._unknown if other != proposal), proposal)
            self._count_holders()
        return self.holders != before

    def begin(self, members: tuple[int, ...], version: int) -> bool:
        """The record was made, and says this, whatever was prepared. Returns False if a newer one arrived before."""
        if version < self.version:
            return False
        self.members, self.version = members, version
        self._count_holders()
        return True

    def _count_holders(self) -> None:
        found = dict.fromkeys(self.members)
        for proposal in (*self._unknown, *((self._asked,) if self._asked is not None else ())):
            found.update(dict.fromkeys(proposal.isr))
        found.pop(self._node_id, None)
        self.holders = tuple(found)
