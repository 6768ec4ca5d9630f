"""Where a process's settings come from: defaults, then a file, then the environment, then the command line.

The later source wins, key by key. Every key of every source must be known: a misspelt one is refused with the nearest
names and the place where it stands, never passed over. Values are text and are read by the settings model.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stratalog.model.errors import InvalidRequest
from stratalog.settings.process import ProcessSettings
from stratalog.settings.units import plain
from stratalog.settings.wrong_values import explain, fields_by_key, unknown_key

ENVIRONMENT_PREFIX = "STRATALOG_"

COMMAND_LINE_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        *("DATA", "LISTEN", "BUCKET", "STORE", "META", "CONFIG", "ADMIN", "OUTPUT", "TOKEN_FILE"),
        *("CONTEXT", "BOOTSTRAP", "CLIENT_CONFIG", "CLIENT_SECRET", "PASSWORD", "NEW_PASSWORD", "BEARER_TOKEN"),
        *("CERTIFICATE_FOLDER", "SPARK_MASTER"),
        *("ETCD_CA", "ETCD_CERT", "ETCD_KEY", "ETCD_USER", "ETCD_PASSWORD", "ETCD_PASSWORD_FILE"),
    )
)
"""Variables for options of the command line, not for settings."""

# Kubernetes puts such variables into every pod for a Service whose name begins with "stratalog"; they are not ours.
_SERVICE_LINK = re.compile(r"(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")


def environment_name(key: str) -> str:
    """`log.segment.bytes` -> `STRATALOG_LOG_SEGMENT_BYTES`."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def load_process_settings(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    has_bucket: bool = True,
) -> ProcessSettings:
    """Settings from all sources. `assignments` are the command line's `KEY=VALUE`.

    Without a bucket `remote.storage.enable` is false; setting it to true is refused.

    Raises: InvalidRequest naming source, key, value, what is allowed, nearest names.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values |= _known(read_settings_file(file), f"{file}")
    values |= _from_environment(environment or {})
    values |= _known(parse_assignments(assignments), "--set")
    if not has_bucket:
        values.setdefault("remote.storage.enable", "false")
    values = {key: plain(key, value) if isinstance(value, str) else value for key, value in values.items()}
    try:
        settings = ProcessSettings.model_validate(values)
    except ValidationError as error:
        raise explain(error, ProcessSettings, values, "process") from None
    if settings.remote_storage_enable and not has_bucket:
        raise InvalidRequest("remote.storage.enable=true needs an object store: give --bucket, or leave the key out")
    return settings


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` each; the last of a key wins, as on any command line. Units are taken off: `retention.ms=7d`."""
    values: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"--set {assignment!r}: expected KEY=VALUE, such as log.segment.bytes=1048576")
        values[key.strip()] = plain(key.strip(), value.strip())
    return values


def read_settings_file(path: Path) -> dict[str, Any]:
    """A `.toml` file (tables and dotted keys are joined with dots) or `KEY=VALUE` lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"settings file {path}: cannot be read ({why}); check --config") from None
    if path.suffix == ".toml":
        try:
            return dict(_flattened(tomllib.loads(text), ""))
        except tomllib.TOMLDecodeError as error:
            raise InvalidRequest(f"settings file {path}: not TOML: {error}") from None
    return _parse_properties(text, path)


def _parse_properties(text: str, path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InvalidRequest(f"settings file {path}, line {number}: expected KEY=VALUE, found {line[:80]!r}")
        if key in values:
            raise InvalidRequest(f"settings file {path}, line {number}: {key} is set twice; keep one of the two lines")
        values[key] = value.strip()
    return values


def _flattened(table: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    by_name = {environment_name(key): key for key in fields_by_key(ProcessSettings)}
    values: dict[str, str] = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in COMMAND_LINE_VARIABLES:
            continue
        if name in by_name:
            values[by_name[name]] = value
        elif not _SERVICE_LINK.search(name):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            raise InvalidRequest(f"environment variable {name}: {unknown_key(key, by_name.values(), 'process')}")
    return values


def _known(values: dict[str, Any], source: str) -> dict[str, Any]:
    known = fields_by_key(ProcessSettings)
    for key in values:
        if key not in known:
            raise InvalidRequest(f"{source}: {unknown_key(key, known, 'process')}")
    return values
