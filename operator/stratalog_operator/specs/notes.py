"""Times in annotations that the operator wrote, and that others may have changed.

Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_of_note(text: str) -> datetime | None:
    """In UTC, as a note without a zone is meant. None: it cannot be read, or is before 1970."""
    try:
        found = datetime.fromisoformat(text)
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found if found >= _FIRST else None


def due_by_age(noted: str, days: int) -> datetime | None:
    """When what was made at the noted time is so old. None: others changed the note, and the age is unknown."""
    since = time_of_note(noted)
    try:
        return None if since is None else since + timedelta(days=days)
    except OverflowError:
        return None
