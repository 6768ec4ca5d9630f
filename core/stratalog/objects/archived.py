"""What an S3 server says of an object that it does not give because of its storage class.

A GET is answered with 403 InvalidObjectState, whether a restore is under way or not. A HEAD says more: the class
(`x-amz-storage-class`) and the restore (`x-amz-restore`: `ongoing-request="true"` while it is under way,
`ongoing-request="false", expiry-date="..."` once there is a copy to read).
`ask` blocks; all else is pure. Source: the S3 API reference, HeadObject and RestoreObject.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.model.errors import Archived

ARCHIVED_CODES: Final = ("InvalidObjectState", "BlobArchived")
"""As S3 and Azure say it."""
ASK_S: Final = 5.0
_ONGOING: Final = re.compile(r'ongoing-request="(true|false)"')
_CLASS: Final = re.compile(r"[A-Z0-9_]{1,32}")


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Of an archived object."""

    storage_class: str = ""
    """Empty: not known."""
    is_restoring: bool | None = None
    """None: not known."""


NOT_KNOWN: Final = ArchiveState()


def state_of(headers: Mapping[str, str]) -> ArchiveState:
    """From the headers of an answer to HEAD; their names in lower case. Without `x-amz-restore` nothing was asked."""
    given = headers.get("x-amz-storage-class", "")
    restore = headers.get("x-amz-restore", "")
    found = _ONGOING.search(restore)
    is_restoring = found[1] == "true" if found else (None if restore else False)
    return ArchiveState(given if _CLASS.fullmatch(given) else "", is_restoring)


def ask(signed_url: str) -> ArchiveState:
    """Send a HEAD that was signed in advance. Blocking; a server that does not answer it leaves the state unknown."""
    request = urllib.request.Request(signed_url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            return state_of({name.lower(): value for name, value in answer.headers.items()})
    except (OSError, ValueError):
        return NOT_KNOWN


def archived(what: str, answer: str, state: ArchiveState = NOT_KNOWN) -> Archived:
    """The error for a read. `answer`: what the store said."""
    place = f"archive class {state.storage_class}" if state.storage_class else "an archive class"
    where = f"{what}: {answer}: the object is in {place}"
    if state.is_restoring:
        words = f"{where}, and a restore is under way: it can be read once that is done, and reads are tried again"
    else:
        unknown = " (whether a restore is under way is not known)" if state.is_restoring is None else ""
        words = (
            f"{where}, and must be restored before it can be read{unknown}: restore it (S3: `stratalog "
            "topics restore`); if a lifecycle rule moved it, remove the rule (`stratalog doctor` names it)"
        )
    return Archived(words, state.storage_class, state.is_restoring)
