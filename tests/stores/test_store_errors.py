"""Each answer that a bucket or a network can give, and what it means for the caller (F42, F44, F45, F46, F49)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.model.errors import (
    AlreadyExists,
    Archived,
    Corrupt,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StratalogError,
    Unavailable,
)
from stratalog.objects import ObjectStore, Operation, StoreSettings
from support.cluster_ports import free_port
from support.s3_servers import S3Server
from support.scripted_server import Script, http_answer, scripted_server

Opener = Callable[..., ObjectStore]

QUICK = StoreSettings(attempt_timeout_ms=1_000, deadline_ms=5_000, attempts=3, backoff_ms=1, backoff_cap_ms=5)


def s3_error(status: str, code: str) -> bytes:
    return http_answer(status, f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode())


CALLS = {
    Operation.PUT: lambda store: store.put("k/a", [b"abc"]),
    Operation.GET: lambda store: store.get_range("k/a", 2, 6),
    Operation.DELETE: lambda store: store.delete(["k/a", "k/b"]),
}


async def outcome(store: ObjectStore, operation: Operation) -> StratalogError:
    with pytest.raises(StratalogError) as caught:
        await CALLS[operation](store)
    return caught.value


# answer: (what a put means, what a read means, what a deletion means, how often a read is sent)
TABLE: dict[str, tuple[bytes | None, type, type, type, int]] = {
    "slow down": (s3_error("503 Slow Down", "SlowDown"), Unavailable, Unavailable, Unavailable, 3),
    "too many requests": (s3_error("429 Too Many", "TooMany"), Unavailable, Unavailable, Unavailable, 3),
    "internal error": (s3_error("500 Internal", "InternalError"), OutcomeUnknown, Unavailable, Unavailable, 3),
    "bad gateway": (http_answer("502 Bad Gateway", b"<html>"), OutcomeUnknown, Unavailable, Unavailable, 3),
    "gateway timeout": (http_answer("504 Timeout", b"<html>"), OutcomeUnknown, Unavailable, Unavailable, 3),
    "conflict": (s3_error("409 C", "ConditionalRequestConflict"), OutcomeUnknown, Unavailable, Unavailable, 3),
    "precondition failed": (s3_error("412 P", "PreconditionFailed"), AlreadyExists, Unavailable, Unavailable, 3),
    "no such key": (s3_error("404 Not Found", "NoSuchKey"), Unavailable, NotFound, Unavailable, 1),
    "no such bucket": (s3_error("404 Not Found", "NoSuchBucket"), Unavailable, Unavailable, Unavailable, 1),
    "not found by no store": (http_answer("404 N", b"<html>"), Unavailable, Unavailable, Unavailable, 1),
    "forbidden": (s3_error("403 Forbidden", "AccessDenied"), Unavailable, Unavailable, Unavailable, 1),
    "archived": (s3_error("403 Forbidden", "InvalidObjectState"), Archived, Archived, Archived, 1),
    "archived in Azure": (s3_error("409 Conflict", "BlobArchived"), OutcomeUnknown, Archived, Archived, 1),
    "unauthorized": (s3_error("401 No", "InvalidToken"), Unavailable, Unavailable, Unavailable, 1),
    "not implemented": (s3_error("501 No", "NotImplemented"), InvalidRequest, InvalidRequest, InvalidRequest, 1),
    "bad request": (s3_error("400 Bad", "InvalidArgument"), InvalidRequest, InvalidRequest, InvalidRequest, 1),
    "lost answer": (None, OutcomeUnknown, Unavailable, Unavailable, 3),
    "half an answer": (b"HTTP/1.1 200 O", OutcomeUnknown, Unavailable, Unavailable, 3),
    "no http": (b"SSH-2.0-OpenSSH\r\n\r\n", OutcomeUnknown, Unavailable, Unavailable, 3),
}


@pytest.mark.parametrize("name", TABLE)
async def test_each_answer_has_one_meaning(name: str, opener: Opener) -> None:
    answer, put_means, get_means, delete_means, reads = TABLE[name]
    for operation, means in zip(CALLS, (put_means, get_means, delete_means), strict=True):
        script = Script(answer)
        async with scripted_server(script) as server:
            store = opener(server.url(), QUICK)
            error = await outcome(store, operation)
            assert type(error) is means, f"{operation}: {error!r}"
            assert "k/a" in str(error)
        script.requests = [one for one in script.requests if not one.startswith("HEAD")]  # what class has it?
        if operation is Operation.PUT:
            assert len(script.requests) == 1, "a put is never sent twice under one name"
        if operation is Operation.GET:
            assert len(script.requests) == reads
            assert store.stats[operation].retries == reads - 1
        assert sum(store.stats[operation].errors.values()) == len(script.requests)


async def test_silence_is_an_unknown_outcome_for_a_put_and_unavailable_for_a_read(opener: Opener) -> None:
    for operation, means, requests in [(Operation.PUT, OutcomeUnknown, 1), (Operation.GET, Unavailable, 3)]:
        script = Script(None, hangs=True)
        async with scripted_server(script) as server:
            store = opener(server.url(), QUICK)
            assert type(await outcome(store, operation)) is means
            assert len(script.requests) == requests
            assert store.stats[operation].errors == {"timeout": requests}


async def test_the_deadline_ends_the_retries(opener: Opener) -> None:
    script = Script(None, hangs=True)
    settings = StoreSettings(attempt_timeout_ms=200, deadline_ms=300, attempts=100, backoff_ms=1, backoff_cap_ms=5)
    async with scripted_server(script) as server:
        await outcome(opener(server.url(), settings), Operation.GET)
    assert len(script.requests) == 2


async def test_a_refused_connection_proves_that_nothing_was_written(opener: Opener) -> None:
    store = opener(S3Server(free_port(), "bucket").url(), QUICK)
    for operation in CALLS:
        assert type(await outcome(store, operation)) is Unavailable
        assert set(store.stats[operation].errors) == {"refused"}
    assert store.stats[Operation.PUT].requests == 1


@pytest.mark.fault("program-credentials-bucket-listens")
async def test_a_store_that_is_not_there_is_reported_with_its_address(opener: Opener) -> None:
    server = S3Server(free_port(), "bucket")
    with pytest.raises(Unavailable, match=f"not reachable: no connection to {server.endpoint};") as told:
        await opener(server.url(), QUICK).get("k/a")
    assert "AKIA" not in str(told.value) and "policy" not in str(told.value)


@pytest.mark.fault("program-credentials-bucket-listens")
@pytest.mark.parametrize("operation", CALLS)
async def test_who_has_no_credentials_learns_that_and_no_word_of_the_store(
    operation: Operation, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without keys the machine's own service for credentials is asked first: its refusal is not the store's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    away = S3Server(free_port(), "bucket")
    async with scripted_server(Script(http_answer("403 Forbidden", b"denied"))) as metadata:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", metadata.endpoint)
        error = await outcome(opener(f"s3://bucket/p?endpoint={away.endpoint}&region=eu-west-1", QUICK), operation)
    assert type(error) is Unavailable, "nothing was written"
    assert "no credentials for the store" in str(error) and "AWS_ACCESS_KEY_ID" in str(error)
    assert metadata.endpoint in str(error) and "policy" not in str(error)


@pytest.mark.fault("lifecycle-rule-moved-object")
async def test_an_object_in_an_archive_class_is_not_a_question_of_credentials(opener: Opener) -> None:
    async with scripted_server(Script(s3_error("403 Forbidden", "InvalidObjectState"))) as server:
        store = opener(server.url(), QUICK)
        error = await outcome(store, Operation.GET)
    assert "must be restored before it can be read" in str(error) and "credentials" not in str(error)


@pytest.mark.parametrize(("told", "said"), [("<Region>eu-west-3</Region>", "eu-west-3"), ("", "REGION")])
async def test_a_wrong_region_is_reported_with_the_right_one(told: str, said: str, opener: Opener) -> None:
    body = f"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong</Message>{told}</Error>"
    async with scripted_server(Script(http_answer("400 Bad", body.encode()))) as server:
        error = await outcome(opener(server.url("p"), QUICK), Operation.GET)
    assert type(error) is InvalidRequest
    assert str(error).endswith(
        "the store answered 400 AuthorizationHeaderMalformed: the region is wrong; give the bucket's region: "
        f"region={said} in the URL, or AWS_REGION"
    )


WRONG_BODIES = {
    "fewer bytes than promised": http_answer("206 P", b"abc", "Content-Range: bytes 2-5/10"),
    "more bytes than asked": http_answer("206 P", b"abcdef", "Content-Range: bytes 2-5/10"),
    "another range": http_answer("206 P", b"abcd", "Content-Range: bytes 3-6/10"),
    "the whole object": http_answer("200 OK", b"0123456789"),
    "no range named": http_answer("206 P", b"abcd"),
}
ENDS_EARLY = {
    "the object ends early": http_answer("206 P", b"abc", "Content-Range: bytes 2-4/5"),
    "range not satisfiable": http_answer("416 Range", b""),
}


@pytest.mark.fault("short-body-wrong-range")
@pytest.mark.parametrize("name", WRONG_BODIES)
async def test_a_wrong_body_is_never_an_answer(name: str, opener: Opener) -> None:
    script = Script(WRONG_BODIES[name])
    async with scripted_server(script) as server:
        store = opener(server.url(), QUICK)
        error = await outcome(store, Operation.GET)
        assert type(error) is Unavailable, "nobody learned anything about the object"
        assert "k/a" in str(error)
    assert store.stats[Operation.GET].errors == {"wrong_body": QUICK.attempts}
    assert store.stats[Operation.GET].bytes == 0


@pytest.mark.parametrize("name", ENDS_EARLY)
async def test_an_object_that_is_said_to_end_early_is_damaged(name: str, opener: Opener) -> None:
    script = Script(ENDS_EARLY[name])
    async with scripted_server(script) as server:
        store = opener(server.url(), QUICK)
        error = await outcome(store, Operation.GET)
        assert type(error) is Corrupt, repr(error)
        assert "k/a" in error.source
    assert store.stats[Operation.GET].errors == {"wrong_body": 2}, "asked once more: a proxy may have been at fault"
    assert store.stats[Operation.GET].requests == len(script.requests)


@pytest.mark.fault("short-body-wrong-range")
async def test_a_whole_object_that_was_cut_on_its_way_is_never_an_answer(opener: Opener) -> None:
    """Its length was made to fit: only the object's own size, which the answer to a range tells, gives it away."""
    script = Script(http_answer("206 P", b"abc", "Content-Range: bytes 0-3/4"))
    async with scripted_server(script) as server:
        with pytest.raises(Unavailable, match="3 bytes, the object 4"):
            await opener(server.url(), QUICK).get("k/a")
    assert len(script.requests) == QUICK.attempts


async def test_a_right_range_is_an_answer(opener: Opener) -> None:
    script = Script(http_answer("206 P", b"abcd", "Content-Range: bytes 2-5/10"))
    async with scripted_server(script) as server:
        assert await opener(server.url(), QUICK).get_range("k/a", 2, 6) == b"abcd"


async def test_a_cut_body_is_asked_for_again_and_never_an_answer(opener: Opener) -> None:
    script = Script(http_answer("206 P", b"abc", "Content-Range: bytes 2-5/10", content_length=4))
    async with scripted_server(script) as server:
        store = opener(server.url(), QUICK)
        assert type(await outcome(store, Operation.GET)) is Unavailable
        assert store.stats[Operation.GET].errors == {"cut": 3}
        with pytest.raises(Unavailable):
            await store.get("k/a")


@pytest.mark.fault("store-ignores-conditional-puts")
async def test_a_store_that_overwrites_is_refused_by_the_probe(opener: Opener) -> None:
    """A server that accepts If-None-Match and writes anyway would let two writers destroy each other's data (F46)."""
    script = Script(http_answer("200 OK"))
    async with scripted_server(script) as server:
        with pytest.raises(InvalidRequest, match="overwrote"):
            await opener(server.url(), QUICK).probe()
    assert [request.split(" ")[0] for request in script.requests][:2] == ["PUT", "PUT"]


async def test_a_store_without_conditional_puts_is_refused_by_the_probe(opener: Opener) -> None:
    script = Script(s3_error("501 Not Implemented", "NotImplemented"))
    async with scripted_server(script) as server:
        with pytest.raises(InvalidRequest, match="conditional"):
            await opener(server.url(), QUICK).probe()


async def test_a_store_that_is_away_is_not_refused_only_unavailable(opener: Opener) -> None:
    with pytest.raises(Unavailable):
        await opener(S3Server(free_port(), "bucket").url(), QUICK).probe()


@pytest.mark.fault("bucket-missing-object-asked")
async def test_a_missing_bucket_is_distinguished_from_a_missing_object(moto: S3Server, opener: Opener) -> None:
    store = opener(S3Server(moto.port, "no-such-bucket").url(), QUICK)
    for call in (store.get("a"), store.head("a"), store.put("a", [b"x"]), store.delete(["a"])):
        with pytest.raises(Unavailable, match="bucket"):
            await call
    with pytest.raises(Unavailable):
        async for _ in store.list("a/"):
            pass
