"""How an error crosses the admin API: a status for whose fault it is, a body with its kind and message."""

from __future__ import annotations

import json
from typing import Final

from stratalog.admin_api.models import ErrorBody
from stratalog.model import errors

_STATUS: Final[tuple[tuple[type[errors.StratalogError], int], ...]] = (
    (errors.NotFound, 404),
    (errors.AlreadyExists, 409),
    (errors.Conflict, 409),
    (errors.Fenced, 409),
    (errors.Reserved, 403),
    (errors.Forbidden, 403),
    (errors.LimitExceeded, 413),
    (errors.Rejected, 400),
    (errors.Unauthorized, 401),
    (errors.DiskFull, 507),
    (errors.Unavailable, 503),
    (errors.OutcomeUnknown, 504),
    (errors.Corrupt, 500),
    (errors.StratalogError, 500),
)

_KINDS: Final[dict[str, type[errors.StratalogError]]] = {
    kind.__name__: kind
    for kind in (
        errors.NotFound,
        errors.AlreadyExists,
        errors.Conflict,
        errors.Fenced,
        errors.Forbidden,
        errors.LimitExceeded,
        errors.InvalidRequest,
        errors.NameCollides,
        errors.Reserved,
        errors.Rejected,
        errors.DiskFull,
        errors.Unauthorized,
        errors.Unavailable,
        errors.OutcomeUnknown,
    )
}


def http_status_of(error: errors.StratalogError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def error_body(error: errors.StratalogError) -> bytes:
    return ErrorBody(error=type(error).__name__, message=str(error)).model_dump_json().encode() + b"\n"


def error_from_body(status: int, body: bytes) -> errors.StratalogError:
    """The error a node answered with. What is no ErrorBody becomes Rejected (4xx) or Unavailable (5xx)."""
    if (reported := reported_error(body)) is not None:
        return reported
    text = body[:200].decode(errors="replace").strip() or "no body"
    kind = errors.Rejected if status < 500 else errors.Unavailable
    return kind(f"the node answered {status}: {text}")


def reported_error(body: bytes) -> errors.StratalogError | None:
    """The error that a node wrote; None for an answer that no Stratalog node writes."""
    try:
        decoded = ErrorBody.model_validate(json.loads(body))
    except ValueError:
        return None
    return _KINDS.get(decoded.error, errors.StratalogError)(decoded.message)
