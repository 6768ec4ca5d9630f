"""Where a table lies, in the words of the libraries that write their logs.

They have clients of their own for object stores. They get the same account, endpoint and patience that the store of the
same URL has. The values are secrets: never log them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never
from urllib.parse import urlsplit

from stratalog.model.errors import InvalidRequest
from stratalog.objects.obstore_store import GCS_NO_LOGIN
from stratalog.objects.urls import AzureLocation, DirectoryLocation, GcsLocation, MemoryLocation, S3Location, parse_url

_TIMEOUT_S: Final = 60
_CONNECT_TIMEOUT_S: Final = 10
_PATIENCE: Final = {
    "timeout": f"{_TIMEOUT_S}s",
    "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
    "max_retries": "2",
    "retry_timeout": f"{_TIMEOUT_S}s",
}


@dataclass(frozen=True, slots=True)
class TablePlace:
    base: str
    """A path, or the store's URL without its query, as `s3://bucket/prefix`."""
    shown: str
    iceberg_base: str
    """As Iceberg's metadata name it, which name every file in full."""
    delta_options: Mapping[str, str] = field(repr=False)

    def uri(self, key: str) -> str:
        return f"{self.base}/{key}"


def table_place(url: str) -> TablePlace:
    """Raises: InvalidRequest for a URL that names no store, or one that no other library reaches."""
    location = parse_url(url)
    match location:
        case DirectoryLocation(path):
            return TablePlace(str(path), str(path), f"file://{path}", {})
        case S3Location():
            return TablePlace(location.url, location.url, location.url, _delta_options(location))
        case GcsLocation():
            return TablePlace(location.url, location.url, location.url, _options_of_google(location))
        case AzureLocation():
            return TablePlace(location.url, location.url, _iceberg_name(location), _options_of_azure(location))
        case MemoryLocation():
            raise InvalidRequest("a table in memory: would be lost: give --to a directory or the URL of a bucket")
        case _:
            assert_never(location)


def _delta_options(location: S3Location) -> dict[str, str]:
    options = {
        f"aws_{name}": str(value).lower() if isinstance(value, bool) else value
        for name, value in location.config.items()
    }
    known = (os.environ[name] for name in ("AWS_REGION", "AWS_DEFAULT_REGION") if os.environ.get(name))
    options.setdefault("aws_region", next(known, "us-east-1"))
    options["aws_allow_http"] = str(location.allow_http).lower()
    # The commit is a put that never replaces: no lock beside the bucket is needed.
    options["aws_conditional_put"] = "etag"
    return {**options, **_PATIENCE}


def _options_of_google(location: GcsLocation) -> dict[str, str]:
    given = location.config
    options = _of_environment("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY")
    if given.get("skip_signature"):
        options = {"google_service_account_key": GCS_NO_LOGIN}
    elif "credentials_file" in given:
        options = {"google_application_credentials": str(given["credentials_file"])}
    if "endpoint" in given:
        options["google_base_url"] = str(given["endpoint"])
    return {**options, "allow_http": str(location.allow_http).lower(), **_PATIENCE}


def _options_of_azure(location: AzureLocation) -> dict[str, str]:
    options = _of_environment(*(name for name in os.environ if name.startswith("AZURE_")))
    for name, value in location.config.items():
        options[f"azure_storage_{name}"] = str(value).lower() if isinstance(value, bool) else value
    return {**options, "allow_http": str(location.allow_http).lower(), **_PATIENCE}


def _of_environment(*names: str) -> dict[str, str]:
    return {name.lower(): os.environ[name] for name in names if os.environ.get(name)}


def _iceberg_name(location: AzureLocation) -> str:
    """Readers of Iceberg know Azure by the address of its file system."""
    account = location.config.get("account_name") or os.environ["AZURE_STORAGE_ACCOUNT_NAME"]
    endpoint = urlsplit(str(location.config.get("endpoint") or "")).hostname or ""
    cloud = endpoint.partition(".blob.")[2] or "core.windows.net"
    base = f"abfss://{location.bucket}@{account}.dfs.{cloud}"
    return f"{base}/{location.prefix}" if location.prefix else base
