"""The URLs that name object stores.

`file:///srv/bucket` or a plain path · `memory:` · `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-west-1`

Of S3 the query may set `endpoint`, `region`, `access_key_id`, `secret_access_key`, `session_token`,
`virtual_hosted_style_request` (`true` or `false`) and `skip_signature`; what it does not set comes from the usual
AWS_* variables of the environment. An endpoint that begins with `http://` turns plain HTTP on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from stratalog.model.errors import InvalidRequest
from stratalog.objects.keys import check_key

_BOOLEANS = ("virtual_hosted_style_request", "skip_signature")
_TEXTS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True)
class DirectoryLocation:
    path: Path


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    pass


@dataclass(frozen=True, slots=True)
class S3Location:
    """`config` is for obstore and holds secrets: never log it. `url` holds none."""

    bucket: str
    prefix: str
    url: str
    config: Mapping[str, str | bool]
    allow_http: bool


Location: TypeAlias = DirectoryLocation | MemoryLocation | S3Location


def parse_url(url: str, environment: Mapping[str, str] | None = None) -> Location:
    """Raises: InvalidRequest, naming the part that is wrong, never a secret."""
    if "://" not in url and not url.startswith(("file:", "memory:")):
        if not url:
            raise InvalidRequest("object store URL is empty: give a directory, file:///DIR or s3://BUCKET/PREFIX")
        return DirectoryLocation(Path(url).absolute())
    parts = urlsplit(url)
    match parts.scheme:
        case "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise InvalidRequest(f"object store URL {url!r}: a file URL needs an absolute path, file:///DIR")
            return DirectoryLocation(Path(unquote(parts.path)))
        case "memory":
            return MemoryLocation()
        case "s3":
            return _parse_s3(parts.netloc, parts.path, parts.query, os.environ if environment is None else environment)
        case other:
            raise InvalidRequest(f"object store URL with scheme {other!r}: known are file, memory and s3")


def _parse_s3(bucket: str, path: str, query: str, environment: Mapping[str, str]) -> S3Location:
    if not bucket or "@" in bucket:
        raise InvalidRequest("object store URL: s3://BUCKET/PREFIX needs a bucket; credentials go into the query")
    prefix = unquote(path).strip("/")
    if prefix:
        check_key(prefix)
    config: dict[str, str | bool] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TEXTS:
            config[name] = value
        elif name in _BOOLEANS and value in ("true", "false"):
            config[name] = value == "true"
        else:
            known = ", ".join((*_TEXTS, *_BOOLEANS))
            raise InvalidRequest(f"object store URL s3://{bucket}: {name!r} is unknown or wrong; known: {known}")
    endpoint = config.get("endpoint")
    if endpoint is None:
        endpoint = next((environment[name] for name in _ENDPOINT_VARIABLES if environment.get(name)), "")
        if endpoint:
            config["endpoint"] = endpoint
    allow_http = str(endpoint).startswith("http://")
    url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
    return S3Location(bucket, prefix, url, config, allow_http)
