"""What Google Cloud Storage answers, and what it means for the caller; and how its client proves who it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.model.errors import AlreadyExists, InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from stratalog.objects import BucketSettings, ObjectStore, Unknown, read_bucket_settings
from support.gcs_server import GcsServer, write_service_account
from support.scripted_server import Script, http_answer, scripted_server
from support.store_answers import QUICK, Means, require_meaning, require_no_bucket

Opener = Callable[..., ObjectStore]


def gcs_error(status: str, code: str) -> bytes:
    return http_answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode())


TABLE = {
    "exists": Means(gcs_error("412 P", "PreconditionFailed"), AlreadyExists, Unavailable, Unavailable),
    "object missing": Means(gcs_error("404 N", "NoSuchKey"), Unavailable, NotFound, None),
    "bucket missing": Means(gcs_error("404 N", "NoSuchBucket"), Unavailable, Unavailable, Unavailable),
    "a proxy's 404": Means(http_answer("404 N", b"Not Found"), Unavailable, Unavailable, Unavailable),
    "denied": Means(gcs_error("403 F", "AccessDenied"), Unavailable, Unavailable, Unavailable),
    "token expired": Means(gcs_error("401 U", "AuthenticationRequired"), Unavailable, Unavailable, Unavailable),
    "too often": Means(gcs_error("429 T", "SlowDown"), Unavailable, Unavailable, Unavailable),
    "retained": Means(gcs_error("403 F", "RetentionPolicyNotMet"), Unavailable, Unavailable, Unavailable),
    "backend error": Means(gcs_error("503 B", "BackendError"), Unavailable, Unavailable, Unavailable),
    "internal error": Means(gcs_error("500 I", "InternalError"), OutcomeUnknown, Unavailable, Unavailable),
}


@pytest.mark.fault("bucket-missing-object-asked")
@pytest.mark.parametrize("name", TABLE)
async def test_each_answer_of_google_has_one_meaning(name: str, opener: Opener) -> None:
    await require_meaning(TABLE[name], lambda port: opener(GcsServer(port, "orders").url(), QUICK))


@pytest.mark.fault("bucket-missing-object-asked")
async def test_a_missing_bucket_is_never_a_missing_object(gcs: GcsServer, opener: Opener) -> None:
    store = opener(GcsServer(gcs.port, "no-such-bucket", gcs.credentials_file).url("p"), QUICK)
    await require_no_bucket(store, r"404 NoSuchBucket; check the bucket's name")


async def test_a_key_of_another_service_account_is_denied(gcs: GcsServer, opener: Opener, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    write_service_account(other)
    store = opener(GcsServer(gcs.port, gcs.bucket, other).url(), QUICK)
    for call in (store.put("a/one", [b"x"]), store.get("a/one"), store.delete(["a/one"])):
        with pytest.raises(Unavailable, match="credentials"):
            await call


async def test_key_file_and_endpoint_come_from_the_environment(
    gcs: GcsServer, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_BASE_URL", gcs.endpoint)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(gcs.credentials_file))
    store = opener(f"gs://{gcs.bucket}/environment", QUICK)
    await store.put("a/one", [b"x"])
    assert await store.get("a/one") == b"x"


async def test_a_pod_without_a_key_file_asks_its_metadata_server(
    gcs: GcsServer, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{gcs.port}")
    store = opener(f"gs://{gcs.bucket}/workload?endpoint={gcs.endpoint}", QUICK)
    await store.put("a/one", [b"x"])
    assert await store.get("a/one") == b"x"


@pytest.mark.fault("program-credentials-bucket-listens")
async def test_without_credentials_the_message_says_who_was_asked(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_server(Script(http_answer("403 Forbidden", b"denied"))) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{metadata.port}")
        store = opener("gs://orders/p?endpoint=http://127.0.0.1:1", QUICK)
        with pytest.raises(Unavailable, match=r"no credentials.*GOOGLE_APPLICATION_CREDENTIALS.*answered 403"):
            await store.put("k/a", [b"x"])


@pytest.mark.parametrize("text", [None, "hush {", '{"type": "external_account", "hush": 1}', "PEM"])
def test_credentials_that_cannot_be_read_are_refused_at_the_start(
    text: str | None, opener: Opener, tmp_path: Path
) -> None:
    file = tmp_path / "key.json"
    if text == "PEM":
        text = json.dumps(
            {"type": "service_account", "client_email": "a", "private_key": "hush", "private_key_id": "1"}
        )
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidRequest, match="readable key file of a service account") as caught:
        opener(f"gs://orders?credentials_file={file}", QUICK)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("storage_class", ["", "NEARLINE", "COLDLINE", "ARCHIVE"])
async def test_an_object_is_put_in_the_storage_class_that_is_asked_for(
    storage_class: str, gcs: GcsServer, opener: Opener
) -> None:
    await opener(gcs.url("classes"), QUICK).put(f"a/{storage_class}x", [b"x"], storage_class)
    assert gcs.classes[f"/{gcs.bucket}/classes/a/{storage_class}x"] == storage_class


@pytest.mark.fault("topic-storage-class-server")
async def test_a_storage_class_of_s3_is_refused_and_never_passed_over(opener: Opener) -> None:
    store = opener(GcsServer(1, "orders").url(), QUICK)
    with pytest.raises(
        InvalidRequest,
        match=r"STANDARD_IA: set .* to STANDARD, NEARLINE or COLDLINE or ARCHIVE",
    ):
        await store.put("k/a", [b"x"], "STANDARD_IA")
    assert store.stats.requests == 0


def test_the_settings_of_a_bucket_are_not_asked_for_and_the_answer_says_so() -> None:
    found = read_bucket_settings("gs://orders/p", QUICK, {})
    assert isinstance(found, BucketSettings) and found.prefix == "p/"
    assert isinstance(found.lifecycle, Unknown) and not found.lifecycle.is_asked
