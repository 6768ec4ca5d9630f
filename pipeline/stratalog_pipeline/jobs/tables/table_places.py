"""Where a table lies, in the words of the libraries that write their logs.

They have clients of their own for object stores. They get the same account, endpoint and patience that the store of the
same URL has. The values are secrets: never log them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from stratalog.model.errors import InvalidRequest
from stratalog.objects.urls import AzureLocation, DirectoryLocation, GcsLocation, MemoryLocation, S3Location, parse_url

_TIMEOUT_S: Final = 60
_CONNECT_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True)
class TablePlace:
    base: str
    """A path, or `s3://bucket/prefix`."""
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
        case GcsLocation() | AzureLocation():
            raise InvalidRequest("a table at Google or Azure cannot be written yet: give --to a directory or an S3 URL")
        case MemoryLocation():
            raise InvalidRequest("a table in memory: would be lost: give --to a directory or an S3 URL")
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
    options["timeout"] = f"{_TIMEOUT_S}s"
    options["connect_timeout"] = f"{_CONNECT_TIMEOUT_S}s"
    options["max_retries"], options["retry_timeout"] = "2", f"{_TIMEOUT_S}s"
    return options
