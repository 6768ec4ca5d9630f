"""What Azure Blob Storage answers, and what it means for the caller: codes of its pages, and Azurite itself."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from stratalog.model.errors import (
    AlreadyExists,
    Archived,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from stratalog.objects import BucketSettings, ObjectStore, Unknown, read_bucket_settings
from support.azure_server import AzureServer, access_tier, lease
from support.scripted_server import Script, http_answer, scripted_server
from support.store_answers import QUICK, Means, require_meaning, require_no_bucket

Opener = Callable[..., ObjectStore]


def azure_error(status: str, code: str) -> bytes:
    return http_answer(status, f"\ufeff<Error><Code>{code}</Code><Message>m</Message></Error>".encode())


TABLE = {
    "exists": Means(azure_error("409 C", "BlobAlreadyExists"), AlreadyExists, Unavailable, Unavailable),
    "container is going": Means(
        azure_error("409 C", "ContainerBeingDeleted"), OutcomeUnknown, Unavailable, Unavailable
    ),
    "immutable": Means(azure_error("409 C", "BlobImmutableDueToPolicy"), OutcomeUnknown, Unavailable, Unavailable),
    "archived": Means(azure_error("409 C", "BlobArchived"), OutcomeUnknown, Archived, Archived),
    "leased": Means(azure_error("412 P", "LeaseIdMissing"), AlreadyExists, Unavailable, Unavailable),
    "blob missing": Means(azure_error("404 N", "BlobNotFound"), Unavailable, NotFound, None),
    "container missing": Means(azure_error("404 N", "ContainerNotFound"), Unavailable, Unavailable, Unavailable),
    "not for strangers": Means(azure_error("404 N", "ResourceNotFound"), Unavailable, Unavailable, Unavailable),
    "a proxy's 404": Means(http_answer("404 N", b"<html>"), Unavailable, Unavailable, Unavailable),
    "denied": Means(azure_error("403 F", "AuthorizationPermissionMismatch"), Unavailable, Unavailable, Unavailable),
    "busy": Means(azure_error("503 S", "ServerBusy"), Unavailable, Unavailable, Unavailable),
}


@pytest.mark.fault("azure-conflict-at-create", "bucket-missing-object-asked")
@pytest.mark.parametrize("name", TABLE)
async def test_each_answer_of_azure_has_one_meaning(name: str, opener: Opener) -> None:
    await require_meaning(TABLE[name], lambda port: opener(AzureServer(port, "orders").url(), QUICK))


@pytest.mark.azurite
@pytest.mark.fault("bucket-missing-object-asked", "azure-batch-hides-outcomes")
async def test_a_missing_container_is_never_a_missing_object(azurite: AzureServer, opener: Opener) -> None:
    store = opener(AzureServer(azurite.port, "no-such-container").url("p"), QUICK)
    await require_no_bucket(store, r"404.*the bucket's name")


@pytest.mark.azurite
@pytest.mark.fault("azure-batch-hides-outcomes")
async def test_a_missing_object_hides_no_other_that_could_not_be_deleted(azurite: AzureServer, opener: Opener) -> None:
    store = opener(azurite.url("leases"), QUICK)
    for name in "bdz":
        await store.put(name, [b"x"])
    lease(azurite, "leases/d")
    with pytest.raises(Unavailable, match="412"):
        await store.delete(["a", "b", "c", "d", "z"])
    assert [info.key async for info in store.list("")] == ["d"]


@pytest.mark.azurite
async def test_a_wrong_key_is_denied_and_not_shown(azurite: AzureServer, opener: Opener) -> None:
    wrong = base64.b64encode(b"hush hush").decode()
    store = opener(azurite.url(key=wrong), QUICK)
    for call in (store.put("a/one", [b"x"]), store.get("a/one"), store.delete(["a/one"])):
        with pytest.raises(Unavailable, match="credentials") as caught:
            await call
        assert wrong not in str(caught.value)


@pytest.mark.azurite
async def test_account_key_and_endpoint_come_from_the_environment(
    azurite: AzureServer, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite.endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azurite.account_key)
    store = opener(f"az://{azurite.bucket}/environment", QUICK)
    await store.put("a/one", [b"x"])
    assert await store.get("a/one") == b"x"


@pytest.mark.fault("program-credentials-bucket-listens")
async def test_without_credentials_the_message_names_the_variables_and_who_was_asked(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_server(Script(http_answer("401 Unauthorized", b"denied"))) as tokens:
        monkeypatch.setenv("AZURE_CLIENT_ID", "one")
        monkeypatch.setenv("AZURE_CLIENT_SECRET", "hush")
        monkeypatch.setenv("AZURE_TENANT_ID", "acme")
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", tokens.endpoint)
        store = opener("az://orders/p?account_name=acme&endpoint=http://127.0.0.1:1", QUICK)
        with pytest.raises(Unavailable, match=r"no credentials for the store: AZURE_.*answered 401") as caught:
            await store.put("k/a", [b"x"])
    assert tokens.endpoint in str(caught.value) and "hush" not in str(caught.value)


@pytest.mark.azurite
@pytest.mark.parametrize(("storage_class", "tier"), [("", "Hot"), ("COOL", "Cool"), ("COLD", "Cold")])
async def test_a_blob_is_put_in_the_access_tier_that_is_asked_for(
    storage_class: str, tier: str, azurite: AzureServer, opener: Opener
) -> None:
    store = opener(azurite.url("tiers"), QUICK)
    await store.put(f"a/{tier}", [b"x"], storage_class)
    assert access_tier(azurite, f"tiers/a/{tier}") == tier
    assert await store.get(f"a/{tier}") == b"x"


@pytest.mark.fault("topic-storage-class-server")
async def test_a_storage_class_of_s3_is_refused_and_never_passed_over(opener: Opener) -> None:
    store = opener(AzureServer(1, "orders").url(), QUICK)
    with pytest.raises(InvalidRequest, match=r"no storage class STANDARD_IA: set .* to STANDARD, COOL or COLD"):
        await store.put("k/a", [b"x"], "STANDARD_IA")
    assert store.stats.requests == 0


def test_the_settings_of_a_container_are_not_asked_for_and_the_answer_says_so() -> None:
    found = read_bucket_settings("az://orders/p?account_name=acme", QUICK, {})
    assert isinstance(found, BucketSettings) and found.prefix == "p/"
    assert isinstance(found.lifecycle, Unknown) and not found.lifecycle.is_asked
