"""URLs of object stores: what each part means, and which ones are refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.objects.urls import (
    AzureLocation,
    DirectoryLocation,
    GcsLocation,
    MemoryLocation,
    S3Location,
    is_url,
    parse_url,
)


def test_a_plain_path_and_a_file_url_name_a_directory() -> None:
    assert parse_url("/srv/my bucket") == DirectoryLocation(Path("/srv/my bucket"))
    assert parse_url("file:///srv/my%20bucket") == DirectoryLocation(Path("/srv/my bucket"))
    assert parse_url("relative/place") == DirectoryLocation(Path.cwd() / "relative/place")


def test_memory_is_named_by_its_scheme() -> None:
    assert parse_url("memory:") == MemoryLocation() == parse_url("memory://")


def test_an_s3_url_keeps_its_secrets_out_of_the_name_that_is_shown() -> None:
    location = parse_url(
        "s3://bucket/a/b/?endpoint=http://127.0.0.1:9000&access_key_id=K&secret_access_key=S%2B1&region=eu-west-1", {}
    )
    assert isinstance(location, S3Location)
    assert (location.bucket, location.prefix, location.url) == ("bucket", "a/b", "s3://bucket/a/b")
    assert location.config["secret_access_key"] == "S+1"
    assert location.allow_http


def test_plain_http_is_off_unless_the_endpoint_asks_for_it() -> None:
    for query, allowed in [("", False), ("?endpoint=https://s3.example", False), ("?endpoint=http://s3.example", True)]:
        location = parse_url(f"s3://bucket{query}", {})
        assert isinstance(location, S3Location)
        assert location.allow_http is allowed


def test_the_environment_gives_the_endpoint_that_the_url_leaves_open() -> None:
    location = parse_url("s3://bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert isinstance(location, S3Location)
    assert location.config["endpoint"] == "http://127.0.0.1:9000"
    assert location.allow_http
    location = parse_url("s3://bucket?endpoint=https://other", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert isinstance(location, S3Location)
    assert location.config["endpoint"] == "https://other"


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x/y", "file://host/x", "file:x", "s3://", "s3:///key", "s3://K:S@bucket", "s3://b/../c",
     "s3://b?region=x&what=y", "s3://b?skip_signature=maybe", "memory:x", "memory://x", "https://b.s3.amazonaws.com",
     "s3://[", "C:/bucket", " s3://b", "s3://b\n", "s3://b?region=x&region=y", "s3://b?endpoint=host:9000"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^object store URL "):
        parse_url(url, {})


@pytest.mark.fault("mistyped-object-store-url")
@pytest.mark.parametrize(
    "url",
    ["s3://bucket?secret_access_key=hush&nonsense=1", "s3:bucket?secret_access_key=hush", "s3:/bucket/hush",
     "S3:bucket?secret_access_key=hush", "s3//bucket?secret_access_key=hush", "bucket?secret_access_key=hush",
     "s3//bucket/secret_access_key=hush", "file:bucket?secret_access_key=hush", "file:///b?secret_access_key=hush",
     "file://key:hush@host/b", "file:///b/secret_access_key=hush", "s3://key:hush@bucket", "s3://key:hush/bucket",
     "key:hush@bucket", "hush:b", "s3a://key:hush@bucket", "s3://bucket?hush", "s3://bucket?secret_acces_key=hush",
     "s3://bucket/prefix&secret_access_key=hush", "s3://bucket/secret_access_key=hush", "s3://bucket/../hush",
     "s3://bucket?secret_access_key=x#hush", "s3://bucket?skip_signature=hush", "s3://bucket?endpoint=http://k:hush@h",
     "s3://bucket?endpoint=http://h?secret_access_key=hush", "s3://bucket?endpoint=hush",
     "s3://bucket?session_token=hush&session_token=hush", "s3://[hush", "memory:hush", "s3://bucket?x=1\thush"],
)  # fmt: skip
def test_a_mistyped_url_is_refused_with_the_next_step_and_without_what_was_typed(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_url(url, {})
    told = str(caught.value)
    assert "hush" not in told and "key:" not in told
    assert any(step in told for step in ("write", "known are", "Known are", "credentials go", "name it once", "belong",
                                         "says neither", "an endpoint is", "remove", "as in"))  # fmt: skip


def test_an_endpoint_of_the_environment_is_checked_and_not_shown() -> None:
    with pytest.raises(InvalidRequest, match="AWS_ENDPOINT_URL") as caught:
        parse_url("s3://bucket", {"AWS_ENDPOINT_URL": "http://key:hush@host"})
    assert "hush" not in str(caught.value)


def test_a_near_miss_of_an_option_gets_the_right_name() -> None:
    with pytest.raises(InvalidRequest, match="did you mean secret_access_key"):
        parse_url("s3://bucket?Secret-Acces-Key=hush", {})


def test_the_plus_of_a_secret_stays_a_plus() -> None:
    location = parse_url("s3://bucket?secret_access_key=a+b/c%26d", {})
    assert isinstance(location, S3Location)
    assert location.config["secret_access_key"] == "a+b/c&d"


def test_a_url_of_google_names_bucket_and_prefix() -> None:
    location = parse_url("gs://orders/a/b?credentials_file=/etc/key.json", {"STORAGE_EMULATOR_HOST": "http://h:1"})
    assert isinstance(location, GcsLocation)
    assert (location.bucket, location.prefix, location.url) == ("orders", "a/b", "gs://orders/a/b")
    assert location.config == {"credentials_file": "/etc/key.json", "endpoint": "http://h:1"} and location.allow_http


def test_an_azure_url_names_container_prefix_and_account() -> None:
    location = parse_url("az://orders/a/b?account_name=acme&sas_key=sv%3D1%26sig%3Dx%253D", {})
    assert isinstance(location, AzureLocation)
    assert (location.bucket, location.prefix, location.url) == ("orders", "a/b", "az://orders/a/b")
    assert location.config == {"account_name": "acme", "sas_key": "sv=1&sig=x%3D"}
    assert not location.allow_http
    assert "sig" not in repr(location)


def test_the_environment_gives_account_and_endpoint_of_an_azure_url() -> None:
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": "acme", "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:10000/acme"}
    location = parse_url("az://orders", environment)
    assert isinstance(location, AzureLocation)
    assert location.allow_http and location.config == {"endpoint": "http://127.0.0.1:10000/acme"}


@pytest.mark.fault("mistyped-object-store-url")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("az:orders?account_key=hush", "write az://"),
        ("az://orders", "names no account: write"),
        ("az://Hush?account_name=a", "container's name"),
        ("az://acme:hush@orders?account_name=a", "container's name"),
        ("az://orders/account_key=hush?account_name=a", "belong behind"),
        ("az://orders?account_name=a&account_key=hush!", "not base64"),
        ("az://orders?account_name=a&secret_access_key=hush", "known are endpoint"),
        ("az://orders?account_name=a&skip_signature=hush", "says neither"),
        ("az://orders?account_name=a&endpoint=http://k:hush@h", "an endpoint is"),
        ("gs:orders?credentials_file=hush", "write gs://"),
        ("gs://Hush", "bucket's name"),
        ("gs://key:hush@orders", "bucket's name"),
        ("gs://orders?access_key_id=hush", "known are endpoint, credentials_file"),
        ("gs://orders?endpoint=hush:1", "an endpoint is"),
        ("s3://bucket?account_key=hush", "option that is unknown"),
        ("orders?account_key=hush", "neither a path"),
    ],
)
def test_a_url_of_google_or_azure_that_cannot_be_meant_is_refused_without_what_was_typed(url: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse_url(url, {})
    assert "hush" not in str(caught.value).lower()


def test_an_account_key_of_the_environment_is_checked_and_not_shown() -> None:
    with pytest.raises(InvalidRequest, match="AZURE_STORAGE_ACCOUNT_KEY") as caught:
        parse_url("az://orders?account_name=a", {"AZURE_STORAGE_ACCESS_KEY": "hush!"})
    assert "hush" not in str(caught.value)


def test_data_go_without_a_hash_in_the_signature_over_tls_alone() -> None:
    location = parse_url("s3://bucket?endpoint=https://h&unsigned_payload=true", {})
    assert isinstance(location, S3Location) and location.config["unsigned_payload"] is True
    with pytest.raises(InvalidRequest, match="nothing protects on its way"):
        parse_url("s3://bucket?endpoint=http://h&unsigned_payload=true", {})
    with pytest.raises(InvalidRequest, match="nothing protects on its way"):
        parse_url("s3://bucket?unsigned_payload=true", {"AWS_ENDPOINT_URL_S3": "http://h"})
    parse_url("s3://bucket?endpoint=http://h&unsigned_payload=false", {})


KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize(
    ("query", "environment"),
    [
        ("server_side_encryption=AES256", {}),
        ("server_side_encryption=aws:kms&sse_kms_key_id=key-1&sse_bucket_key_enabled=true", {}),
        ("server_side_encryption=aws:kms:dsse", {}),
        ("sse_kms_key_id=key-1", {"AWS_SERVER_SIDE_ENCRYPTION": "aws:kms"}),
        (f"server_side_encryption=sse-c&sse_customer_key_base64={KEY}", {}),
        ("server_side_encryption=sse-c", {"AWS_SSE_CUSTOMER_KEY_BASE64": KEY}),
    ],
)
def test_the_query_says_how_the_server_encrypts(query: str, environment: dict[str, str]) -> None:
    location = parse_url(f"s3://bucket?{query}", environment)
    assert isinstance(location, S3Location)
    wanted = dict(option.split("=", 1) for option in query.split("&"))
    assert {name: str(value) for name, value in location.config.items()} == {
        name: "True" if value == "true" else value for name, value in wanted.items()
    }
    assert KEY not in repr(location)


@pytest.mark.fault("mistyped-object-store-url")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("server_side_encryption=aes256", "known are AES256, aws:kms, aws:kms:dsse, sse-c"),
        ("sse_kms_key_id=hush", "write server_side_encryption=aws:kms"),
        ("server_side_encryption=AES256&sse_kms_key_id=hush", "write server_side_encryption=aws:kms"),
        ("sse_bucket_key_enabled=true", "write server_side_encryption=aws:kms"),
        (f"sse_customer_key_base64={KEY}", "write server_side_encryption=sse-c"),
        ("server_side_encryption=sse-c", "needs a key of 32 bytes"),
        ("server_side_encryption=sse-c&sse_customer_key_base64=aHVzaA==", "needs a key of 32 bytes"),
        ("server_side_encryption=sse-c&sse_customer_key_base64=hush", "needs a key of 32 bytes"),
        (f"server_side_encryption=sse-c&sse_customer_key_base64={KEY}&endpoint=http://h", "in plain text"),
    ],
)
def test_an_encryption_that_cannot_be_meant_is_refused(query: str, words: str) -> None:
    """A server may pass over what it does not know, and store the objects as they are."""
    with pytest.raises(InvalidRequest, match=words) as caught:
        parse_url(f"s3://bucket?{query}", {})
    assert "hush" not in str(caught.value) and KEY not in str(caught.value)


@pytest.mark.fault("mistyped-object-store-url")
def test_a_location_does_not_show_its_secrets_when_it_is_printed() -> None:
    assert "hush" not in repr(parse_url("s3://bucket?secret_access_key=hush", {}))


@pytest.mark.fault("mistyped-object-store-url")
def test_what_has_no_scheme_is_a_path_whatever_else_it_holds() -> None:
    assert parse_url("./s3:x") == DirectoryLocation(Path.cwd() / "s3:x")
    assert parse_url("/srv/a:b") == DirectoryLocation(Path("/srv/a:b"))
    assert parse_url("file:///srv/we%3Fird%23") == DirectoryLocation(Path("/srv/we?ird#"))
    assert parse_url("s3") == DirectoryLocation(Path.cwd() / "s3")
    assert is_url("s3:x") and not is_url("./s3:x") and not is_url("s3//x")
