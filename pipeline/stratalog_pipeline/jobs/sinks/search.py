"""Elasticsearch and OpenSearch as a target: each record is a document whose `_id` is its place.

Documents of a range are written first, then the shard's progress is moved, in a document of the index `stratalog-sinks`
that is changed by compare-and-set. A kill in between has the range written again, to the same places. Back-pressure: a
task has one bulk request under way; while the server is busy (429 and the like, of the request or of its items) the
task pauses, and its requests become smaller.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

from stratalog.machines.backoff import pause_after
from stratalog.model.errors import Conflict, Forbidden, InvalidRequest, Unavailable
from stratalog_pipeline.cold.progress import Gap
from stratalog_pipeline.jobs.sinks.http_server import HttpServer
from stratalog_pipeline.jobs.sinks.search_documents import (
    BULK_BYTES,
    MAPPING,
    Document,
    bulks,
    documents_of,
    outcome_of,
    reason_of,
)
from stratalog_pipeline.jobs.sinks.target import (
    DELETED,
    Lack,
    ReadTables,
    ShardRange,
    SinkFacts,
    Stored,
    TargetAddress,
    TargetState,
    check_facts,
    out_of_order,
)

BOOK: Final = "stratalog-sinks"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_TRIES: Final = 10
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0
_LEAST_BULK_BYTES: Final = 64 << 10
_BOOK_INDEX: Final = {"mappings": {"enabled": False}}
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Book:
    """What is written down about an index, and the version of that document."""

    facts: SinkFacts
    state: TargetState
    version: tuple[int, int] = (0, 0)
    """Sequence number and primary term."""

    def moved(self, shard: int, next_offset: int, lacks: Sequence[Lack]) -> Book:
        offsets = dict(self.state.next_offsets)
        offsets[shard] = max(offsets.get(shard, 0), next_offset)
        added = [one for one in lacks if one not in self.state.lacks]
        return Book(self.facts, TargetState(offsets, [*self.state.lacks, *added]), self.version)

    def encode(self) -> bytes:
        facts = self.facts
        return json.dumps(
            {
                "cluster_id": facts.cluster_id,
                "topic": facts.topic,
                "topic_id": str(facts.topic_id),
                "next_offsets": {str(shard): offset for shard, offset in sorted(self.state.next_offsets.items())},
                "lacks": [[one.shard, one.from_offset, one.to_offset, one.why] for one in self.state.lacks],
            }
        ).encode()


def decode_book(answer: bytes, source: str) -> Book:
    """Raises: Conflict for a document that no sink wrote."""
    try:
        found = json.loads(answer)
        body = found["_source"]
        facts = SinkFacts(str(body["cluster_id"]), str(body["topic"]), UUID(body["topic_id"]))
        offsets = {int(shard): int(offset) for shard, offset in body["next_offsets"].items()}
        lacks = [Lack(int(one[0]), int(one[1]), int(one[2]), str(one[3])) for one in body["lacks"]]
        return Book(facts, TargetState(offsets, lacks), (int(found["_seq_no"]), int(found["_primary_term"])))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise Conflict(f"{source} is not what a sink writes there ({error!r}): name another --table") from None


class SearchTarget:
    def __init__(self, address: TargetAddress, sleep: Callable[[float], None] = time.sleep) -> None:
        if _NAME.fullmatch(address.name) is None or address.name == BOOK:
            raise InvalidRequest(
                f"{address.name!r:.80} cannot be the name of an index: small letters, digits, dots, - and _; give "
                "--table NAME"
            )
        self._server = HttpServer(address, secret_scheme="ApiKey")
        self._name = address.name
        self._sleep = sleep
        self._bulk_bytes = BULK_BYTES

    def __enter__(self) -> SearchTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    # What is there --------------------------------------------------------------------------------------------------
    def read(self, facts: SinkFacts) -> TargetState | None:
        book = self._book(facts)
        return None if book is None else book.state

    def prepare(self, facts: SinkFacts, begins: Mapping[int, int]) -> TargetState:
        book = self._book(facts)
        if book is not None:
            return book.state
        self._make_index(BOOK, _BOOK_INDEX)
        self._make_index(self._name, {"mappings": MAPPING})
        self._ask("POST", f"/{self._name}/_refresh")
        _, answer = self._ask("GET", f"/{self._name}/_count")
        if json.loads(answer)["count"]:
            raise Conflict(f"{self._source} has documents, and no sink wrote them: name another --table, or empty it")
        made = Book(facts, TargetState(dict(begins)))
        self._ask("PUT", f"/{BOOK}/_create/{self._name}", made.encode(), also=(409,))
        book = self._book(facts)
        if book is None:
            raise Unavailable(f"{self._source}: what is known of it was deleted just now: run the job again")
        return book.state

    def _make_index(self, name: str, body: Mapping[str, Any]) -> None:
        status, _ = self._ask("HEAD", f"/{name}", also=(404,))
        if status != 404:
            return
        status, answer = self._ask("PUT", f"/{name}", json.dumps(body).encode(), also=(400,))
        if status == 400 and b"resource_already_exists_exception" not in answer:
            raise InvalidRequest(f"{self._server.where}: {_reason(answer)}")

    def _book(self, facts: SinkFacts) -> Book | None:
        """Raises: Conflict where the index is of something else."""
        status, answer = self._ask("GET", f"/{BOOK}/_doc/{self._name}", also=(404,))
        if status == 404:
            return None
        book = decode_book(answer, f"{self._server.where}/{BOOK}/_doc/{self._name}")
        check_facts(book.facts, facts, self._source)
        if self._ask("HEAD", f"/{self._name}", also=(404,))[0] == 404:
            raise Conflict(
                f"{self._source} was deleted, and {BOOK} still has its progress: name another --table, or delete "
                f"document {self._name!r} of {BOOK} to store everything again"
            )
        return book

    # Changes --------------------------------------------------------------------------------------------------------
    def accept(self, facts: SinkFacts, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            lack = Lack(gap.shard, gap.from_offset, gap.to_offset, DELETED)
            self._move(facts, gap.shard, gap.to_offset, [lack])

    def store(self, facts: SinkFacts, wanted: ShardRange, read: ReadTables) -> Stored:
        stored = Stored()
        next_offset = self._known(facts).state.next_offsets.get(wanted.shard, 0)
        if next_offset >= wanted.to_offset:
            return Stored(was_there=True)
        if next_offset < wanted.from_offset:
            raise out_of_order(wanted, next_offset, self._source)
        for table in read(next_offset, stored.unread):
            for some in bulks(documents_of(table, facts.topic_id), BULK_BYTES):
                self._write(some)
            stored.records += table.num_rows
        lacks = [Lack(wanted.shard, one.base_offset, one.end_offset, one.why) for one in stored.unread]
        self._move(facts, wanted.shard, wanted.to_offset, lacks)
        return stored

    def _write(self, documents: Sequence[Document]) -> None:
        """Returns once all are stored. Raises: InvalidRequest naming a document that the server will not take."""
        left, failures = list(documents), 0
        while left:
            some = next(iter(bulks(left, self._bulk_bytes)))
            body = b"".join(one.lines for one in some)
            path = f"/{self._name}/_bulk"
            status, answer = self._server.request("POST", path, body, "application/x-ndjson")
            rest = left[len(some) :]
            if status == 413 and len(some) > 1:
                self._bulk_bytes = max(len(body) // 2, 1)
                continue
            if status in _BUSY:
                again, is_busy, why = list(some), True, f"{status}: {_reason(answer)}"
            else:
                self._check(status, answer)
                outcome = outcome_of(some, answer)
                if outcome is None:
                    raise Unavailable(f"{self._server.where}: the answer to a bulk request does not fit it")
                if outcome.refused:
                    document, reason = outcome.refused[0]
                    raise InvalidRequest(
                        f"{self._source} does not take document {document.id} ({reason}), and "
                        f"{len(outcome.refused) - 1} more of its request: change the index's mapping, and run again"
                    )
                again, is_busy, why = outcome.again, outcome.is_busy, outcome.why
            left = [*again, *rest]
            if not is_busy:
                failures = 0
                continue
            failures += 1
            if failures == _TRIES:
                raise Unavailable(f"{self._source} is busy ({why})")
            self._bulk_bytes = max(self._bulk_bytes // 2, _LEAST_BULK_BYTES)
            self._sleep(pause_after(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S, random.random()))

    def _known(self, facts: SinkFacts) -> Book:
        book = self._book(facts)
        if book is None:
            raise Conflict(f"the progress of {self._source} was deleted meanwhile: run the job again")
        return book

    def _move(self, facts: SinkFacts, shard: int, next_offset: int, lacks: Sequence[Lack]) -> None:
        """Other tasks and jobs move the progress of their shards in the same document."""
        for failures in range(1, _TRIES + 1):
            book = self._known(facts)
            seq_no, term = book.version
            path = f"/{BOOK}/_doc/{self._name}?if_seq_no={seq_no}&if_primary_term={term}"
            status, _ = self._ask("PUT", path, book.moved(shard, next_offset, lacks).encode(), also=(409,))
            if status != 409:
                return
            self._sleep(pause_after(failures, _FIRST_PAUSE_S / 10, _FIRST_PAUSE_S, random.random()))
        raise Unavailable(f"the progress of {self._source} is changed all the time: run the job again")

    # The server -----------------------------------------------------------------------------------------------------
    @property
    def _source(self) -> str:
        return f"index {self._name}"

    def _ask(self, method: str, path: str, body: bytes = b"", also: Sequence[int] = ()) -> tuple[int, bytes]:
        """`also`: statuses that are an answer, beside those of success."""
        status, answer = self._server.request(method, quote(path, safe="/?=&_-."), body)
        if status not in also:
            self._check(status, answer)
        return status, answer

    def _check(self, status: int, answer: bytes) -> None:
        where = self._server.where
        if 200 <= status < 300:
            return
        if status == 401:
            raise Forbidden(f"{where} refuses the login: check --user and the password")
        if status == 403:
            raise Forbidden(f"{where}: {_reason(answer)}: give the user the right")
        if status in _BUSY:
            raise Unavailable(f"{where}: {status}: {_reason(answer)}")
        raise InvalidRequest(f"{where}: {status}: {_reason(answer)}")


def _reason(answer: bytes) -> str:
    try:
        return reason_of(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(answer[:300].decode("utf-8", "replace").split())
