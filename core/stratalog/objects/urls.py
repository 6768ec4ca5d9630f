"""The URLs that name object stores.

`file:///srv/bucket` or a plain path · `memory:` · `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-west-1`
· `gs://bucket/prefix` · `az://container/prefix?account_name=orders`

What begins with a scheme and a colon is a URL, everything else is a path: a mistyped URL never becomes a directory. A
path has no `?`, and a path with a colon in its first name is written `./a:b`. Of S3 the query may set `endpoint`,
`region`, `access_key_id`, `secret_access_key`, `session_token`, `virtual_hosted_style_request` (`true` or `false`),
`skip_signature`, `unsigned_payload` (over https alone), and how the server encrypts what is put
(`server_side_encryption`, `sse_kms_key_id`, `sse_bucket_key_enabled`, `sse_customer_key_base64`); what it does not set
comes from the usual AWS_* variables of the environment. Of Google Cloud Storage it may set `endpoint`,
`credentials_file` and `skip_signature` (for emulators); the rest comes from the GOOGLE_* variables. Of Azure Blob
Storage it may set `endpoint`, `account_name`, `account_key`, `sas_key`, `client_id`, `client_secret`, `tenant_id`,
`authority_host` and `skip_signature`; the rest comes from the AZURE_* variables. A `+` is a plus, `&`, `#` and `%` in a
value are written as %26, %23 and %25. An endpoint that begins with `http://` turns plain HTTP on.
No refusal repeats what was typed: where a part is misplaced, it may be the secret.
"""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from stratalog.model.errors import InvalidRequest
from stratalog.objects.keys import check_key

_BOOLEANS = ("virtual_hosted_style_request", "skip_signature", "unsigned_payload", "sse_bucket_key_enabled")
_ENCRYPTION_TEXTS = ("server_side_encryption", "sse_kms_key_id", "sse_customer_key_base64")
_TEXTS = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token", *_ENCRYPTION_TEXTS)
_AZURE_LOGIN = ("client_id", "client_secret", "tenant_id", "authority_host")
_AZURE_TEXTS = ("endpoint", "account_name", "account_key", "sas_key", *_AZURE_LOGIN)
_AZURE_BOOLEANS = ("skip_signature",)
_GCS_TEXTS = ("endpoint", "credentials_file")
_GCS_BOOLEANS = ("skip_signature",)
_ALL_OPTIONS = sorted({*_TEXTS, *_BOOLEANS, *_AZURE_TEXTS, *_AZURE_BOOLEANS, *_GCS_TEXTS, *_GCS_BOOLEANS})
_KMS = ("aws:kms", "aws:kms:dsse")
_CUSTOMER_KEY = "sse-c"
_ENCRYPTIONS = ("AES256", *_KMS, _CUSTOMER_KEY)
_CUSTOMER_KEY_BYTES = 32
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_GCS_ENDPOINT_VARIABLES = ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST")
_AZURE_ENDPOINT_VARIABLES = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_AZURE_KEY_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_AZURE_ACCOUNT_VARIABLE = "AZURE_STORAGE_ACCOUNT_NAME"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_GCS_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}")
_MISPLACED_OPTION = re.compile(rf"({'|'.join(_ALL_OPTIONS)})=", re.IGNORECASE)
_S3_FORM = "s3://BUCKET/PREFIX?endpoint=URL&region=REGION"
_GCS_FORM = "gs://BUCKET/PREFIX"
_AZURE_FORM = "az://CONTAINER/PREFIX?account_name=ACCOUNT"


@dataclass(frozen=True, slots=True)
class DirectoryLocation:
    path: Path


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    pass


@dataclass(frozen=True, slots=True)
class BucketLocation:
    """A bucket, or a container, at a server. `url` holds no secret."""

    bucket: str
    prefix: str
    url: str
    config: Mapping[str, str | bool] = field(repr=False)
    """For the store's client, with secrets: never log it."""
    allow_http: bool


@dataclass(frozen=True, slots=True)
class S3Location(BucketLocation):
    """Of S3 and its kin."""


@dataclass(frozen=True, slots=True)
class GcsLocation(BucketLocation):
    """A bucket of Google Cloud Storage. `config`: the query's options, with the endpoint of the environment."""


@dataclass(frozen=True, slots=True)
class AzureLocation(BucketLocation):
    """A container of Azure Blob Storage."""


Location: TypeAlias = DirectoryLocation | MemoryLocation | S3Location | GcsLocation | AzureLocation


def is_url(text: str) -> bool:
    """Whether the text is read as a URL, right or wrong; a path otherwise."""
    return _SCHEME.match(text) is not None


def parse_url(url: str, environment: Mapping[str, str] | None = None) -> Location:
    """Raises: InvalidRequest, naming the part that is wrong, never a secret."""
    if not url:
        _refuse(f"is empty: give a directory, file:///DIR or {_S3_FORM}")
    if not url.isprintable() or url != url.strip():
        _refuse("holds control characters, or spaces at an end: remove them")
    if not is_url(url):
        return _parse_path(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        _refuse(f"cannot be read: write {_S3_FORM}, file:///DIR or a path")
    match parts.scheme:
        case "file":
            return _parse_file(parts)
        case "memory":
            if url.partition(":")[2] not in ("", "//"):
                _refuse("with memory: has nothing behind the colon: write memory:")
            return MemoryLocation()
        case "s3":
            if not url[len("s3:") :].startswith("//"):
                _refuse(f"begins with s3: but not with s3://: write {_S3_FORM}")
            return _parse_s3(parts, os.environ if environment is None else environment)
        case "gs":
            if not url[len("gs:") :].startswith("//"):
                _refuse(f"begins with gs: but not with gs://: write {_GCS_FORM}")
            return _parse_gcs(parts, os.environ if environment is None else environment)
        case "az":
            if not url[len("az:") :].startswith("//"):
                _refuse(f"begins with az: but not with az://: write {_AZURE_FORM}")
            return _parse_azure(parts, os.environ if environment is None else environment)
        case _:
            _refuse(
                f"begins with a scheme that is none of file, memory, s3, gs and az: write {_S3_FORM}, {_GCS_FORM}, "
                f"{_AZURE_FORM} or file:///DIR; a directory with a colon in its name is written ./NAME"
            )


def _refuse(reason: str) -> NoReturn:
    raise InvalidRequest(f"object store URL {reason}")


def _parse_path(path: str) -> DirectoryLocation:
    if "?" in path or _MISPLACED_OPTION.search(path):
        _refuse(
            f"is neither a path, which has no '?' and no options, nor a URL: write {_S3_FORM}; a directory with a '?' "
            "in its name is written file:///DIR with %3F"
        )
    return DirectoryLocation(Path(path).absolute())


def _parse_file(parts: SplitResult) -> DirectoryLocation:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        _refuse("with file: needs an absolute path: write file:///DIR")
    if parts.query or parts.fragment or _MISPLACED_OPTION.search(unquote(parts.path)):
        _refuse("with file: has no options: write file:///DIR, a '?' or '#' in its name as %3F or %23")
    return DirectoryLocation(Path(unquote(parts.path)))


def _parse_s3(parts: SplitResult, environment: Mapping[str, str]) -> S3Location:
    bucket = parts.netloc
    if not _BUCKET.fullmatch(bucket):
        _refuse(
            f"needs a bucket's name behind s3://, and nothing else there; credentials go into the query: {_S3_FORM}"
        )
    prefix = _prefix(parts, _S3_FORM)
    config = _options(parts.query, _TEXTS, _BOOLEANS)
    allow_http = _set_endpoint(config, environment, _ENDPOINT_VARIABLES)
    if allow_http and config.get("unsigned_payload"):
        _refuse(
            "with unsigned_payload would send data that nothing protects on its way: write https://, or leave it out"
        )
    _check_encryption(config, environment, allow_http=allow_http)
    return S3Location(bucket, prefix, _shown("s3", bucket, prefix), config, allow_http)


def _parse_gcs(parts: SplitResult, environment: Mapping[str, str]) -> GcsLocation:
    bucket = parts.netloc
    if not _GCS_BUCKET.fullmatch(bucket):
        _refuse(
            "needs a bucket's name behind gs:// (3 to 222 lower-case letters, digits, hyphens, dots and underscores), "
            f"and nothing else there; credentials are in a file or come from the environment: write {_GCS_FORM}"
        )
    prefix = _prefix(parts, _GCS_FORM)
    config = _options(parts.query, _GCS_TEXTS, _GCS_BOOLEANS)
    allow_http = _set_endpoint(config, environment, _GCS_ENDPOINT_VARIABLES)
    return GcsLocation(bucket, prefix, _shown("gs", bucket, prefix), config, allow_http)


def _parse_azure(parts: SplitResult, environment: Mapping[str, str]) -> AzureLocation:
    container = parts.netloc
    if not _CONTAINER.fullmatch(container):
        _refuse(
            "needs a container's name behind az:// (3 to 63 lower-case letters, digits and single hyphens), and "
            f"nothing else there; the account and credentials go into the query: write {_AZURE_FORM}"
        )
    prefix = _prefix(parts, _AZURE_FORM)
    config = _options(parts.query, _AZURE_TEXTS, _AZURE_BOOLEANS)
    if not (config.get("account_name") or environment.get(_AZURE_ACCOUNT_VARIABLE)):
        _refuse(f"names no account: write {_AZURE_FORM}, or set {_AZURE_ACCOUNT_VARIABLE}")
    allow_http = _set_endpoint(config, environment, _AZURE_ENDPOINT_VARIABLES)
    key = config.get("account_key") or next((environment[n] for n in _AZURE_KEY_VARIABLES if environment.get(n)), "")
    if key and _decoded(str(key)) is None:
        _refuse(f"has an account_key that is not base64: write it as Azure shows it, into {_AZURE_KEY_VARIABLES[0]}")
    return AzureLocation(container, prefix, _shown("az", container, prefix), config, allow_http)


def _shown(scheme: str, bucket: str, prefix: str) -> str:
    return f"{scheme}://{bucket}/{prefix}" if prefix else f"{scheme}://{bucket}"


def _prefix(parts: SplitResult, form: str) -> str:
    if parts.fragment:
        _refuse(f"with {parts.scheme}:// holds a '#': write it as %23")
    prefix = unquote(parts.path).strip("/")
    if not prefix:
        return ""
    if _MISPLACED_OPTION.search(prefix):
        _refuse(f"has options in its prefix: they belong behind a '?', joined by '&': {form}")
    try:
        check_key(prefix)
    except InvalidRequest:
        _refuse(
            "has a prefix that cannot be: names joined by '/', each 1 to 200 letters, digits or ._=@- that begin with "
            f"no dot, as in {form}"
        )
    return prefix


def _set_endpoint(config: dict[str, str | bool], environment: Mapping[str, str], variables: tuple[str, ...]) -> bool:
    """Takes the endpoint that the query leaves open from the environment. Returns: whether it is plain HTTP."""
    endpoint, said_by = config.get("endpoint"), "the query's endpoint"
    if endpoint is None:
        said_by = next((name for name in variables if environment.get(name)), "")
        if said_by:
            endpoint = config["endpoint"] = environment[said_by]
    if endpoint is None:
        return False
    _check_endpoint(str(endpoint), said_by)
    return str(endpoint).lower().startswith("http://")


def _options(query: str, texts: tuple[str, ...], booleans: tuple[str, ...]) -> dict[str, str | bool]:
    options = (*texts, *booleans)
    config: dict[str, str | bool] = {}
    for number, option in enumerate(query.split("&") if query else (), 1):
        name, _, value = map(unquote, option.partition("="))
        if name in config:
            _refuse(f"names {name} twice in its query: name it once")
        if name in texts:
            config[name] = value
        elif name in booleans and value in ("true", "false"):
            config[name] = value == "true"
        elif name in booleans:
            _refuse(f"says neither true nor false for {name}")
        else:
            near = difflib.get_close_matches(name.lower().replace("-", "_"), options, n=1)
            hint = f"did you mean {near[0]}? Known" if near else "known"
            _refuse(f"has an option that is unknown, number {number} of its query: {hint} are {', '.join(options)}")
    return config


def _decoded(text: str) -> bytes | None:
    """From base64; None if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _check_encryption(config: Mapping[str, str | bool], environment: Mapping[str, str], *, allow_http: bool) -> None:
    """A wrong one would be noticed with the first put, or never: a server may pass over what it does not know."""

    def given(name: str) -> str | bool:
        return config.get(name) or environment.get(f"AWS_{name.upper()}", "")

    kind, key = given("server_side_encryption"), str(given("sse_customer_key_base64"))
    if kind and kind not in _ENCRYPTIONS:
        _refuse(f"has an unknown server_side_encryption: known are {', '.join(_ENCRYPTIONS)}")
    for name in ("sse_kms_key_id", "sse_bucket_key_enabled"):
        if given(name) and kind not in _KMS:
            _refuse(f"has {name} without a KMS: write server_side_encryption={_KMS[0]} beside it")
    if key and kind != _CUSTOMER_KEY:
        _refuse(f"has sse_customer_key_base64 alone: write server_side_encryption={_CUSTOMER_KEY} beside it")
    if kind == _CUSTOMER_KEY:
        if len(_decoded(key) or b"") != _CUSTOMER_KEY_BYTES:
            _refuse(
                f"with server_side_encryption={_CUSTOMER_KEY} needs a key of {_CUSTOMER_KEY_BYTES} bytes: write it in "
                "base64 into AWS_SSE_CUSTOMER_KEY_BASE64"
            )
        if allow_http:
            _refuse(f"with server_side_encryption={_CUSTOMER_KEY} would send the key in plain text: write https://")


def _check_endpoint(endpoint: str, said_by: str) -> None:
    try:
        parts = urlsplit(endpoint)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or "@" in parts.netloc or parts.query or parts.fragment:
        _refuse(
            f"cannot be used with {said_by}: an endpoint is http://HOST:PORT or https://HOST, without credentials or "
            "options"
        )
