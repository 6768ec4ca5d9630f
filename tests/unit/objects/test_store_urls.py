"""URLs of object stores: what each part means, and which ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.errors import InvalidRequest
from stratalog.objects.urls import DirectoryLocation, MemoryLocation, S3Location, parse_url


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
     "s3://b?region=x&what=y", "s3://b?skip_signature=maybe"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="object"):
        parse_url(url, {})


def test_a_refusal_never_shows_a_secret() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_url("s3://bucket?secret_access_key=hush&nonsense=1", {})
    assert "hush" not in str(caught.value)
