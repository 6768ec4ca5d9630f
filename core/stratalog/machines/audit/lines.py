"""A line of the audit log (docs/security.md says what each field means). Pure.

A line names kinds of errors, never their texts: texts repeat what a client sent, which may be a password. For the same
reason it has no value of a setting that was not accepted. Texts of others are bounded, so a line has at most some ten
KiB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from stratalog.model.rights import ANONYMOUS

LONGEST_TEXT: Final = 256
"""Characters of a name that a line shows."""
MOST_DETAILS: Final = 20
"""Entries of a list or a mapping that a line shows; the rest is counted."""


class Outcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    """Nothing was changed."""
    UNKNOWN = "unknown"
    """No answer says whether it was done."""
    DENIED = "denied"
    """The principal has no right to it, or did not prove who it is."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The caller: a principal as `TYPE:NAME`, and the address of its connection without the port."""

    principal: str
    address: str


NOBODY_PROVEN: Final = str(ANONYMOUS)
"""The principal of whoever did not prove to be one."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a caller asked for."""

    action: str
    resource_type: str
    resource: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditLine:
    at_ms: int
    """Time of the event, in ms since 1970; of several, that of the first."""
    asker: Asker
    change: Change
    outcome: Outcome
    error: str = ""
    """The name of an error of Kafka, or of `stratalog.model.errors`; empty for none."""
    count: int = 1
    until_ms: int = 0
    """Of several events, the time of the last one."""

    def as_json(self, cluster_id: str, part: str) -> str:
        """One line, with its end. `part`: the process that writes it, such as `node 1`."""
        change = self.change
        said: dict[str, Any] = {
            "time": _time(self.at_ms),
            "level": "info",
            "event": "audit",
            "cluster": cluster_id,
            "part": part,
            "principal": bounded(self.asker.principal),
            "address": bounded(self.asker.address),
            "action": bounded(change.action),
            "resource_type": change.resource_type,
            "resource": bounded(change.resource),
            "outcome": self.outcome.value,
            "error": bounded(self.error) or None,
        }
        if self.until_ms:
            said |= {"count": self.count, "until": _time(self.until_ms)}
        if change.details:
            said["details"] = _shown(change.details)
        return json.dumps(said, separators=(",", ":")) + "\n"


def bounded(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text)} characters)"


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1_000:03d}Z"


def _shown(value: Any) -> Any:
    """Plain data of a bounded size."""
    match value:
        case str():
            return bounded(value)
        case bool() | int() | None:
            return value
        case Mapping():
            shown = {bounded(str(key)): _shown(one) for key, one in list(value.items())[:MOST_DETAILS]}
            return shown | ({"...": f"{len(value)} in all"} if len(value) > MOST_DETAILS else {})
        case list() | tuple():
            some = [_shown(one) for one in value[:MOST_DETAILS]]
            return [*some, f"... {len(value)} in all"] if len(value) > MOST_DETAILS else some
        case _:
            return bounded(str(value))
