"""Errors as problem JSON (RFC 9457): the kind of error crosses HTTP, so that a client raises what the service raised.

A kind that this version does not know becomes the general error for its HTTP status: the caller's fault or the
service's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DiskFull,
    Fenced,
    Forbidden,
    InvalidRequest,
    LeaseHeld,
    LimitExceeded,
    NameCollides,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Rejected,
    Reserved,
    StratalogError,
    Unauthorized,
    Unavailable,
)

CONTENT_TYPE: Final = "application/problem+json"
_PREFIX: Final = "urn:stratalog:error:"

_KINDS: Final[dict[str, type[StratalogError]]] = {
    kind.__name__: kind
    for kind in (
        AlreadyExists,
        Conflict,
        DiskFull,
        Fenced,
        Forbidden,
        InvalidRequest,
        LeaseHeld,
        LimitExceeded,
        NameCollides,
        NotFound,
        NotLeader,
        OutcomeUnknown,
        Rejected,
        Reserved,
        StratalogError,
        Unauthorized,
        Unavailable,
    )
}
_STATUS: Final[tuple[tuple[type[StratalogError], int], ...]] = (
    # The first that fits.
    (NotFound, 404),
    (AlreadyExists, 409),
    (Conflict, 409),
    (Fenced, 412),
    (Reserved, 403),
    (Forbidden, 403),
    (LimitExceeded, 413),
    (Rejected, 400),
    (Unauthorized, 401),
    (DiskFull, 507),
    (Unavailable, 503),
    (StratalogError, 500),
)


@dataclass(frozen=True, slots=True)
class CorruptPlace:
    reason: str
    source: str
    position: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was not done. `type` ends in the kind of error; `status` repeats the HTTP status."""

    type: str
    title: str
    status: int
    detail: str
    corrupt: CorruptPlace | None = None
    leader: str | None = None
    """Where to ask instead (`NotLeader`); it is in the Location header as well."""


def to_problem(error: StratalogError) -> Problem:
    kind = type(error).__name__
    status = next(status for base, status in _STATUS if isinstance(error, base))
    place = None
    if isinstance(error, Corrupt):
        place = CorruptPlace(reason=error.reason, source=error.source, position=error.position)
    leader = error.leader if isinstance(error, NotLeader) else None
    status = 307 if leader is not None else status
    return Problem(_PREFIX + kind, kind, status, str(error), place, leader)


def from_problem(problem: Problem) -> StratalogError:
    if problem.corrupt is not None:
        place = problem.corrupt
        return Corrupt(place.reason, source=place.source, position=place.position)
    if problem.leader is not None:
        return NotLeader(problem.detail, problem.leader)
    kind = _KINDS.get(problem.type.removeprefix(_PREFIX))
    if kind is None:  # a kind that a newer service knows: its status says whose fault it is
        kind = Rejected if 400 <= problem.status < 500 else OutcomeUnknown
    return kind(problem.detail)
