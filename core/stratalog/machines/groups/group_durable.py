"""What a group waits for while a record of it is on its way to the log, by the ticket of `PersistGroup` or
`PersistMember`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stratalog.machines.groups.group_events import JoinAnswer


@dataclass(frozen=True, slots=True)
class Assigning:
    """The leader's assignments are being made durable."""

    generation: int
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Returning:
    """A static member came back to a stable group under a new id, which is being made durable."""

    generation: int
    member_id: str
    waiter: int
    answer: JoinAnswer


Awaiting: TypeAlias = Assigning | Returning | None
"""None: nobody waits for the record."""
