"""The result of one run of a pipeline job, as `stratalog pipeline run` leaves it: in a file, or as the termination
message of a pod, which the operator reads.

The text has at most `MAX_BYTES`, which is what Kubernetes keeps of a termination message. It comes from a pod, so
`decode_report` believes only its bounds: numbers are counts, words are cut and lose their control characters, and
fields of later versions are passed over.

Pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Final

from stratalog.model.errors import InvalidRequest

MAX_BYTES: Final = 4096
MAX_MESSAGE: Final = 1024
"""Characters."""
_MAX_COUNT: Final = 2**63 - 1
_MAX_TEXT: Final = 64 * 1024
"""Characters of a text that is looked into at all."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """Counts are of this run alone. Times are Unix milliseconds."""

    action: str
    """`archive`, `compact`, `verify`, `export`, `sink`: the command."""
    exit_code: int
    """0 done, 1 findings, 2 refused, 3 unavailable, 128 and more: ended by that signal."""
    started_ms: int
    finished_ms: int
    segments: int = 0
    """That were archived, merged or checked."""
    rows: int = 0
    """Records that were written to a table, exported or stored in a sink's target."""
    bytes: int = 0
    """Bytes that were read from the bucket (archive, verify, sink) or put (compact, export)."""
    findings: int = 0
    """What needs a person: dead letters, damage, segments that were not merged, batches that were not exported."""
    lag_records: int | None = None
    """Committed records that the tables do not have at the end of the run. None: not known, or not an archive."""
    is_committed: bool = False
    """Whether the run changed anything: a table, the bucket, or the target of an export or a sink."""
    message: str = ""
    """Why it failed, in words; empty if it did not."""

    @property
    def is_success(self) -> bool:
        return self.exit_code == 0


_COUNTS: Final = ("exit_code", "started_ms", "finished_ms", "segments", "rows", "bytes", "findings")


def encode_report(report: JobReport) -> str:
    """JSON of one line, of at most MAX_BYTES: the message is cut until it fits."""
    given = {"version": 1, **asdict(report)}
    message = bounded_words(report.message)
    while True:
        text = json.dumps({**given, "message": message}, ensure_ascii=True)
        if len(text) <= MAX_BYTES or not message:
            return text
        message = message[: len(message) * 3 // 4]


def decode_report(text: str) -> JobReport:
    """Raises: InvalidRequest for a text that is not the report of a run."""
    if len(text) > _MAX_TEXT:
        raise InvalidRequest(f"the report of a run has {len(text):,} characters: expected at most {MAX_BYTES:,}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("the report of a run is not JSON: look at the log of its pod") from None
    if not isinstance(found, dict) or found.get("version") != 1:
        raise InvalidRequest("the report of a run is of another version: run jobs and operator of the same version")
    lag = found.get("lag_records")
    counts = {name: found.get(name) for name in _COUNTS}
    wrong = [
        name for name, value in [*counts.items(), *([] if lag is None else [("lag", lag)])] if not _is_count(value)
    ]
    if wrong or not isinstance(found.get("action"), str) or not isinstance(found.get("is_committed"), bool):
        raise InvalidRequest(f"the report of a run has a wrong value: {', '.join(wrong) or 'action or is_committed'}")
    known = {one.name: found[one.name] for one in fields(JobReport) if one.name in found}
    return JobReport(
        **{
            **known,
            "action": bounded_words(found["action"])[:32],
            "message": bounded_words(str(found.get("message", ""))),
        }
    )


def bounded_words(text: str) -> str:
    """One line of printable characters, of at most MAX_MESSAGE."""
    words = "".join(one if one.isprintable() else " " for one in text[: 4 * MAX_MESSAGE])
    words = " ".join(words.split())
    return words if len(words) <= MAX_MESSAGE else f"{words[: MAX_MESSAGE - 2]} …"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
