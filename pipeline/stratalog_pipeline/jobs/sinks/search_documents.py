"""Records as documents of Elasticsearch and OpenSearch, bulk requests of them, and what their answers mean. Pure.

A document's `_id` is topic id, shard and offset, so a record has one place. It is written by `create`, which leaves a
document that is there. A document that was there (409) is written again by `index` with the external version 1: that
changes nothing of the same record, and its acknowledgement says that all in-sync copies have it, which a 409 does not.
Source: the bulk API of both, whose items each have a status.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from stratalog_pipeline.jobs.sinks.headers_text import as_text

BULK_BYTES: Final = 4 << 20
"""Of one bulk request, or one document."""
_MOST_KEYWORD: Final = 1_024
"""Characters of a keyword that is indexed: the server refuses terms above 32,766 bytes."""
_BUSY: Final = frozenset({403, 408, 429, 500, 502, 503, 504})
"""403: an index is read-only, because a disk is full for example; rights are refused for the whole request."""

_KEYWORD: Final = {"type": "keyword", "ignore_above": _MOST_KEYWORD}
MAPPING: Final = {
    "dynamic": False,
    "properties": {
        "topic": {"type": "keyword"},
        "shard": {"type": "integer"},
        "offset": {"type": "long"},
        "time": {"type": "date", "format": "epoch_millis"},
        "key": _KEYWORD,
        "value": {"type": "text"},
        "headers": {"properties": {"key": _KEYWORD, "value": _KEYWORD}},
    },
}


@dataclass(frozen=True, slots=True)
class Document:
    """`action` and `source`: its two lines in a bulk request."""

    id: str
    source: bytes
    is_there: bool = False
    """A document of this id was there."""

    @property
    def lines(self) -> bytes:
        how: dict[str, Any] = {"_id": self.id}
        if self.is_there:
            how |= {"version": 1, "version_type": "external_gte"}
        action = "index" if self.is_there else "create"
        return json.dumps({action: how}).encode() + b"\n" + self.source + b"\n"


def documents_of(table: Any, topic_id: UUID) -> list[Document]:
    """All rows of an Arrow record batch with the columns of `decode.columns.SCHEMA`."""
    names = ("topic", "shard", "offset", "key", "value", "headers")
    columns = [table.column(name).to_pylist() for name in names]
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    found = []
    for topic, shard, offset, key, value, headers, micros in zip(*columns, times, strict=True):
        document = {
            "topic": topic,
            "shard": shard,
            "offset": offset,
            "time": None if micros is None else micros // 1_000,
            **as_text("key", key),
            **as_text("value", value),
            "headers": [{**as_text("key", one["key"].encode()), **as_text("value", one["value"])} for one in headers],
        }
        source = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        found.append(Document(f"{topic_id}/{shard}/{offset}", source))
    return found


def bulks(documents: Sequence[Document], most_bytes: int) -> Iterator[Sequence[Document]]:
    """In order; each of at most that many bytes, or of one document."""
    begin, size = 0, 0
    for at, one in enumerate(documents):
        more = len(one.lines)
        if at > begin and size + more > most_bytes:
            yield documents[begin:at]
            begin, size = at, 0
        size += more
    if begin < len(documents):
        yield documents[begin:]


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """`done`: how many are stored. `again`: those to send again, at once (they were there) or, if `is_busy`, later.
    `refused`: those that the server will never take, with the reason."""

    done: int = 0
    again: list[Document] = field(default_factory=list)
    refused: list[tuple[Document, str]] = field(default_factory=list)
    is_busy: bool = False
    why: str = ""
    """Why some are busy."""


def outcome_of(sent: Sequence[Document], answer: bytes) -> BulkOutcome | None:
    """Of an answer with status 200. None: it does not answer this request."""
    try:
        items = json.loads(answer)["items"]
        results = [next(iter(one.values())) for one in items]
        statuses = [(int(one["status"]), one["_id"], reason_of(one.get("error"))) for one in results]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None
    if [one.id for one in sent] != [found for _, found, _ in statuses]:
        return None
    done, is_busy, why = 0, False, ""
    again: list[Document] = []
    refused: list[tuple[Document, str]] = []
    for document, (status, _, reason) in zip(sent, statuses, strict=True):
        if status in (200, 201):
            done += 1
        elif status == 409 and not document.is_there:
            again.append(Document(document.id, document.source, is_there=True))
        elif status in _BUSY:
            again.append(document)
            is_busy, why = True, reason
        else:
            refused.append((document, f"{status}: {reason}"))
    return BulkOutcome(done, again, refused, is_busy, why)


def reason_of(error: Any) -> str:
    """What an error of the server says, in a line."""
    if isinstance(error, Mapping):
        causes = error.get("root_cause")
        first = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], Mapping) else error
        error = f"{first.get('type', '')}: {first.get('reason', '')}"
    return " ".join(str(error).split())[:500]
