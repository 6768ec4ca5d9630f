"""`stratalog pipeline sink --to opensearch|elasticsearch`: each committed record is a document once, whatever happens.

On a server of the protocol, which also fails at chosen requests, and on a real OpenSearch (`slow`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from stratalog.model.errors import Conflict, Forbidden, InvalidRequest, Unavailable
from stratalog_pipeline.cold.cutting import GapInLog
from stratalog_pipeline.jobs.sinks import search
from stratalog_pipeline.jobs.sinks.search import SearchTarget
from stratalog_pipeline.jobs.sinks.search_documents import Document, bulks, outcome_of
from stratalog_pipeline.jobs.sinks.sink import sink_piece
from stratalog_pipeline.jobs.sinks.target import PASSWORD_VARIABLE, TargetAddress, TargetKind
from support.certificates import make_certificates
from support.cold_data import FIRST_TIME_MS
from support.search_servers import (
    NO_OPENSEARCH,
    ProtocolServer,
    SearchServer,
    opensearch_jars,
    opensearch_server,
    protocol_server,
)
from support.sunk_records import SinkPlace, killed_at, record_at, with_requests_as_steps

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def opensearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchServer]:
    if opensearch_jars() is None:
        pytest.skip(NO_OPENSEARCH)
    with opensearch_server(tmp_path_factory.mktemp("opensearch")) as server:
        yield server


@pytest.fixture
def protocol() -> Iterator[ProtocolServer]:
    with protocol_server() as server:
        yield server


REAL = pytest.param("opensearch", marks=[pytest.mark.slow, pytest.mark.real_opensearch])


class Place(SinkPlace):
    def __init__(self, folder: Path, server: SearchServer) -> None:
        self.server = server
        self.index = f"cold-{uuid4().hex[:8]}"
        super().__init__(folder, TargetAddress(TargetKind.OPENSEARCH, server.url, self.index))

    def offsets(self) -> list[int]:
        return sorted(one["offset"] for one in self.server.documents(self.index).values())

    def book(self) -> Any:
        return self.server.ask("GET", f"/{search.BOOK}/_doc/{self.index}")["_source"]

    def change_book(self, **change: Any) -> None:
        self.server.ask("PUT", f"/{search.BOOK}/_doc/{self.index}", {**self.book(), **change})


@pytest.fixture(params=["protocol", REAL])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.getfixturevalue(request.param))


@pytest.fixture
def local(tmp_path: Path, protocol: ProtocolServer) -> Place:
    return Place(tmp_path, protocol)


async def run(place: Place, **options: Any) -> Any:
    return await asyncio.to_thread(place.sink, **options)


async def test_each_record_is_a_document_with_all_that_it_is(place: Place) -> None:
    await place.fill(10, 10)
    told = await run(place)
    assert (told.records, told.pieces, told.lacks) == (20, 2, [])
    found = place.server.documents(place.index)
    for offset in range(20):
        document = found[f"{place.cold.topic_id}/3/{offset}"]
        record = record_at(offset)
        assert document["time"] == FIRST_TIME_MS + offset
        assert document.get("key") == (None if record.key is None else record.key.decode())
        assert ("value_base64" in document) == (record.value is not None and b"\0" in record.value)
        assert len(document["headers"]) == len(record.headers)
    again = await run(place)
    assert (again.records, again.pieces) == (0, 0)
    await place.fill(5)
    assert (await run(place)).records == 5
    assert place.offsets() == list(range(25))


@pytest.mark.fault("sink-killed")
async def test_documents_that_are_there_are_written_again_to_their_places(place: Place) -> None:
    """As after a kill between the documents and the progress; an acknowledgement of them is a new one."""
    await place.fill(10)
    await run(place)
    place.change_book(next_offsets={"3": 0})
    assert (await run(place)).records == 10
    assert place.offsets() == list(range(10))
    assert place.book()["next_offsets"] == {"3": 10}


@pytest.mark.fault("sink-gap")
async def test_gaps_are_errors_or_are_kept_and_reported(place: Place) -> None:
    await place.fill(5)
    await run(place)
    await place.fill(5)
    await place.fill(5)
    await place.expire(2)
    with pytest.raises(GapInLog, match="offsets 5 to 10 of shard 3"):
        await run(place)
    for records in (5, 0):
        told = await run(place, is_gap_allowed=True)
        assert told.records == records
        assert [(one.from_offset, one.to_offset) for one in told.lacks] == [(5, 10)]


@pytest.mark.fault("sink-of-another-topic")
async def test_an_index_of_something_else_is_refused(place: Place) -> None:
    await place.fill(5)
    await run(place)
    for change, words in (
        ({"topic_id": str(uuid4())}, "was deleted and created again"),
        ({"cluster_id": "other"}, "of cluster 'other'"),
        ({"next_offsets": None}, "is not what a sink writes there"),
    ):
        before = place.book()
        place.change_book(**change)
        with pytest.raises(Conflict, match=words):
            await run(place)
        place.change_book(**before)
    place.change_book(next_offsets={"3": 9})
    with pytest.raises(GapInLog, match="committed up to offset 9, and now is up to 5"):
        await run(place)
    place.server.ask("DELETE", f"/{place.index}")
    with pytest.raises(Conflict, match="was deleted, and stratalog-sinks still has its progress"):
        await run(place)


@pytest.mark.fault("sink-of-another-topic")
async def test_an_index_with_documents_of_others_is_refused(place: Place) -> None:
    await place.fill(5)
    place.server.ask("PUT", f"/{place.index}/_doc/mine", {"mine": 1})
    with pytest.raises(Conflict, match="has documents, and no sink wrote them"):
        await run(place)


@pytest.mark.fault("sink-run-twice")
async def test_two_jobs_at_the_same_time_write_each_record_once(place: Place) -> None:
    await place.fill(*[3] * 6)
    await asyncio.gather(*(run(place, piece_bytes=size) for size in (1, 1 << 20)), return_exceptions=True)
    await run(place)
    assert place.offsets() == list(range(18))


# Failures, on the server that fails at chosen requests ---------------------------------------------------------------
@pytest.fixture
def pauses() -> list[float]:
    return []


def patient(place: Place, pauses: list[float]) -> Callable[[Any, Any], Iterator[Any]]:
    def runner(work: Any, pieces: Any) -> Iterator[Any]:
        assert work is sink_piece
        for piece in pieces:
            yield sink_piece(piece, lambda address: SearchTarget(address, pauses.append), pauses.append)

    return runner


@pytest.mark.fault("sink-busy")
@pytest.mark.parametrize("plan", ["busy", "items-busy", "lost", "too-large"])
async def test_a_bulk_request_that_fails_is_sent_again_as_far_as_it_is_not_done(
    local: Place, protocol: ProtocolServer, plan: str, pauses: list[float]
) -> None:
    await local.fill(10, 10)
    key = "/_items" if plan == "items-busy" else "_bulk"
    protocol.failures.planned = {key: [plan, plan]}
    told = await run(local, run=patient(local, pauses))
    assert local.offsets() == list(range(20))
    assert told.retries == (2 if plan == "lost" else 0)
    assert len(pauses) == (0 if plan == "too-large" else 2)
    assert all(0 < pause <= 30 for pause in pauses)
    if plan == "too-large":
        assert protocol.failures.bulk_sizes[0] < 600, "it sends less at a time"


@pytest.mark.fault("sink-busy")
async def test_a_server_that_stays_busy_ends_the_job_and_the_next_run_continues(
    local: Place, protocol: ProtocolServer, pauses: list[float]
) -> None:
    await local.fill(10)
    protocol.failures.planned = {"_bulk": ["busy"] * 1_000}
    with pytest.raises(Unavailable, match="is busy"):
        await run(local, run=patient(local, pauses))
    assert len(pauses) < 100
    protocol.failures.planned.clear()
    assert (await run(local)).records == 10


async def test_a_document_that_the_server_never_takes_ends_the_job_in_words(
    local: Place, protocol: ProtocolServer
) -> None:
    await local.fill(4)
    protocol.failures.planned = {"/_items": ["refused"]}
    with pytest.raises(InvalidRequest, match=r"does not take document .*/3/0 \(400: mapper_parsing_exception"):
        await run(local)
    assert local.book()["next_offsets"] == {"0": 0, "1": 0, "2": 0, "3": 0}


@pytest.mark.fault("sink-killed")
@pytest.mark.parametrize("path", ["_doc", "_create"])
async def test_an_answer_about_the_progress_that_is_lost_changes_nothing(
    local: Place, protocol: ProtocolServer, path: str, pauses: list[float]
) -> None:
    await local.fill(5)
    ending = f"{path}/{local.index}"
    protocol.failures.planned = {ending: ["", "", "", "lost"] if path == "_doc" else ["lost"]}
    try:
        await run(local, run=patient(local, pauses))
    except Unavailable:
        await run(local)
    assert local.offsets() == list(range(5))
    assert local.book()["next_offsets"]["3"] == 5


@pytest.mark.fault("sink-killed")
@pytest.mark.slow
async def test_a_job_that_is_killed_between_any_two_requests_leaves_each_record_once(
    tmp_path: Path, protocol: ProtocolServer
) -> None:
    await killed_everywhere(tmp_path, protocol)


@pytest.mark.fault("sink-killed")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.real_opensearch
async def test_a_job_that_is_killed_leaves_each_record_once_in_a_real_server(
    tmp_path: Path, opensearch: SearchServer
) -> None:
    await killed_everywhere(tmp_path, opensearch)


async def killed_everywhere(folder: Path, server: SearchServer) -> None:
    step, is_killed = 0, True
    while is_killed:
        step += 1
        place = Place(folder / str(step), server)
        await place.fill(4, 4)
        is_killed = await asyncio.to_thread(killed_at, step, place.options(), with_requests_as_steps)
        await run(place)
        assert place.offsets() == list(range(8)), f"killed at step {step}"
        assert place.book()["next_offsets"]["3"] == 8
        await place.cold.store.close()
    assert step > 30


# Logins and addresses -----------------------------------------------------------------------------------------------
@pytest.mark.fault("sink-login")
async def test_a_login_is_sent_and_a_password_never_in_plain_text_to_another_machine(
    local: Place, protocol: ProtocolServer, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    await local.fill(2)
    local.address = replace(local.address, user="loader", password_file=str(file))
    await run(local)
    assert protocol.failures.authorizations == {"Basic bG9hZGVyOnMzY3JldA=="}
    key = replace(local.address, user="")
    with SearchTarget(key) as target:
        target._ask("HEAD", f"/{local.index}")
    assert "ApiKey s3cret" in protocol.failures.authorizations
    with pytest.raises(InvalidRequest, match="https:// alone"):
        SearchTarget(replace(key, url="http://search.example.com:9200"))


@pytest.mark.fault("sink-login")
def test_a_certificate_that_cannot_be_verified_and_odd_addresses_are_refused(tmp_path: Path) -> None:
    import ssl
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    certificates = make_certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"https://127.0.0.1:{server.server_address[1]}"
        address = TargetAddress(TargetKind.OPENSEARCH, url, "cold")
        with SearchTarget(address) as target, pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            target._ask("GET", "/")
        with (
            SearchTarget(replace(address, ca_file=str(certificates.ca))) as target,
            pytest.raises(Forbidden, match="refuses the login"),
        ):
            target._ask("GET", "/")
        server.shutdown()
    for change, words in (
        ({"url": "https://u:secret@h"}, f"--password-file FILE, or set {PASSWORD_VARIABLE}"),
        ({"url": "h:9200"}, r"https://HOST\[:PORT\]"),
        ({"name": "Cold"}, "give --table NAME"),
        ({"name": search.BOOK}, "give --table NAME"),
        ({"ca_file": os.devnull}, "--ca-file /dev/null"),
    ):
        with pytest.raises(InvalidRequest, match=words) as refused:
            SearchTarget(replace(address, **change))
        assert "secret" not in str(refused.value)


# Pure ---------------------------------------------------------------------------------------------------------------
@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(1, 300))
def test_bulks_have_each_document_once_in_order_and_within_bounds(bodies: list[bytes], most_bytes: int) -> None:
    documents = [Document(str(number), body) for number, body in enumerate(bodies)]
    made = list(bulks(documents, most_bytes))
    assert [one for some in made for one in some] == documents
    assert all(len(some) == 1 or sum(len(one.lines) for one in some) <= most_bytes for some in made)


@given(st.binary(max_size=50))
def test_what_is_no_answer_to_a_bulk_request_is_no_success(answer: bytes) -> None:
    assert outcome_of([Document("a", b"{}")], answer) is None
    other = b'{"items": [{"create": {"_id": "b", "status": 201}}]}'
    assert outcome_of([Document("a", b"{}")], other) is None
