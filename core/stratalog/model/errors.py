"""The error tree, grouped by what the caller can do about it.

Every message says what was wrong, where, and what to do next.
"""

from __future__ import annotations

from functools import partial


class StratalogError(Exception):
    """Root of all errors that Stratalog raises on purpose."""


class Rejected(StratalogError):
    """The caller's fault: the same call will fail again. Nothing was done."""


class InvalidRequest(Rejected):
    """A field of the request is outside what is allowed."""


class NameCollides(InvalidRequest):
    """A topic's name differs from another's only in '.' and '_'."""


class NotFound(Rejected):
    """The thing named does not exist. Never raised for "I could not find out"."""


class AlreadyExists(Rejected):
    """A create-only operation met an existing thing."""


class Conflict(Rejected):
    """A compare-and-set lost: the state is not the one the caller named. Read again, then decide."""


class LeaseHeld(Conflict):
    """Another life of the node holds its lease: the same call is taken once that is over."""


class Fenced(Rejected):
    """The caller's epoch or write lock is older than the present one: it must stop writing."""


class Reserved(Rejected):
    """The thing is the service's own: no caller may make, change or delete it."""


class Forbidden(Rejected):
    """The caller has proven its identity, and has no right to this: the same call fails until a person changes that."""


class LimitExceeded(Rejected):
    """A size or a count is above its limit; the message names the limit's setting."""


class Unavailable(StratalogError):
    """Not now: try again later. Nothing was done."""


class NotLeader(Unavailable):
    """Another instance leads: ask there. `leader` is its URL; None while no instance leads or the leader is not known
    here."""

    def __init__(self, message: str, leader: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class Unauthorized(Unavailable):
    """The caller has not shown the token: it is being replaced, or none was given. Nothing was done, and the same call
    succeeds with the right token."""


class OutOfReach(Unavailable):
    """The data is safe in the object store, and a setting keeps readers out of it: the same call fails until a person
    changes the setting, or a node with a copy is back."""


class Archived(Unavailable):
    """The object is there, in a storage class that must be restored before it is read: the same call is answered once
    a restore is done."""

    def __init__(self, message: str, storage_class: str = "", is_restoring: bool | None = None) -> None:
        """`storage_class`: empty if not known. `is_restoring`: whether a restore is under way; None: not known."""
        super().__init__(message)
        self.storage_class = storage_class
        self.is_restoring = is_restoring


class WrongServer(Unavailable):
    """What answers there is something else: name another address. Nothing was done."""


class DiskFull(Unavailable):
    """No room for new data; heals by itself when space returns."""


class OutcomeUnknown(StratalogError):
    """The operation may or may not have happened: ask (read metadata) before acting again."""


class Corrupt(StratalogError):
    """Data at rest is wrong. Carries where: `source` (file or object) and `position` in bytes."""

    def __init__(self, reason: str, *, source: str, position: int) -> None:
        super().__init__(f"{source}: at byte {position}: {reason}")
        self.reason = reason
        self.source = source
        self.position = position

    def __reduce__(self) -> tuple[partial[Corrupt], tuple[str]]:
        """Pickled as it is made, so that a task in another process can raise it in this one."""
        return partial(type(self), source=self.source, position=self.position), (self.reason,)
