"""What a command is: plain data that says what it wants, what its caller learns, and whether asking twice does harm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from stratalog.model.metadata import Life

R_co = TypeVar("R_co", covariant=True)


class Command(Generic[R_co]):
    """One change that a caller asks for; `R_co` is what it learns when it was made."""

    __slots__ = ()

    is_idempotent: ClassVar[bool] = False
    """Asking again comes to the same: the service sees that it was done, or doing it twice changes nothing. When not, a
    lost answer is `OutcomeUnknown`, to be resolved by reading: a repetition could be refused for what the first did, or
    undo what another did meanwhile."""


@dataclass(frozen=True, slots=True)
class NodeCommand(Command[R_co]):
    """A command that a node may send; each raises Fenced when the node has begun another life since."""

    caller: Life | None = field(default=None, kw_only=True)
    """The life of the node that asks; None when no node does (an operator, a tool)."""
