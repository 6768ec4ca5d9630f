"""Writes docs/configure.md from the settings: `python -m stratalog.settings.page docs/configure.md`.

Without an argument the page goes to standard output. A test compares the page in the tree with `render_page()`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from stratalog.settings.describe import SettingDescription, describe_settings
from stratalog.settings.relations import PROCESS_RELATIONS, TOPIC_RELATIONS
from stratalog.settings.units import (
    DAY_MS,
    GIB,
    HOUR_MS,
    INT32_MAX,
    INT64_MAX,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    takes_duration,
)

_HEAD = """\
# Settings

This page is generated from the code: `python -m stratalog.settings.page docs/configure.md`. Do not edit it.

Keys have their Kafka names, if Kafka has them. A process takes its settings from four places; later ones win:

1. the defaults below,
2. a file, `stratalog start --config FILE`: `KEY=VALUE` lines (`#` begins a comment), or TOML (`.toml`),
3. the environment: `STRATALOG_` and the key in capitals with `_` for `.`: `STRATALOG_LOG_SEGMENT_BYTES=1048576`,
4. the command line: `--set KEY=VALUE`, which may be repeated.

An unknown key is refused, and the message suggests similar names. A value outside its bounds is refused as well.
Times and sizes may have a unit: `7d`, `12h`, `30m`, `10s`, `500ms`; `1GiB`, `64MiB`, `512KiB`, `10MB`.
`stratalog settings [WORD]` prints the tables below.

Addresses and storage locations are command-line options: `--listen` (`STRATALOG_LISTEN`), `--data` (`STRATALOG_DATA`),
`--bucket` (`STRATALOG_BUCKET`), `--config` (`STRATALOG_CONFIG`), and in a cluster
`--meta` (`STRATALOG_META`) and `--store` (`STRATALOG_STORE`). The other commands take the address of a
node in `--admin` (`STRATALOG_ADMIN`), or of several nodes, `--admin HOST:PORT,HOST:PORT`, and the output format in
`--output` (`STRATALOG_OUTPUT`). If nodes and the meta service require a token (`auth.token.file`),
`stratalog --token-file FILE COMMAND` (`STRATALOG_TOKEN_FILE`) sends it. Addresses with `https://` are asked with the
authorities, and the certificate if there is one, of the folder that `STRATALOG_CERTIFICATE_FOLDER` names.

`--bucket` takes a directory (a path or `file:///DIR`), `s3://BUCKET/PREFIX?endpoint=URL&region=REGION`,
`gs://BUCKET/PREFIX` for Google Cloud Storage, or `az://CONTAINER/PREFIX?account_name=ACCOUNT` for Azure Blob Storage
([stores.md](stores.md)). For S3, the
query may also set `access_key_id`, `secret_access_key`, `session_token`, `skip_signature`,
`unsigned_payload` ([stores.md](stores.md#s3)) and
`virtual_hosted_style_request` (`true` or `false`), and how the server encrypts the objects
([security.md](security.md#encryption-at-rest)). Values that it does not set come from the environment:
`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`. Put secrets
there: every user of the machine can see a command line. A value that begins with a scheme and a colon is a URL;
anything else is a path, and a path must not contain `?`. So a mistyped URL is refused instead of becoming a directory,
and the message does not repeat it. In a query, `+` is a plus; write `&`, `#` and `%` inside a value as `%26`, `%23` and
`%25`.
"""

_TOPIC_HEAD = """
## Settings of a topic

Set them when you create a topic (`stratalog topics create NAME --set KEY=VALUE`) or alter it; Kafka admin clients can
set them too. If a topic does not set a key, the value of the process applies.

Some topic settings of Kafka are translated: `unclean.leader.election.enable` to `uncleanSeal`, `flush.messages`
(1, or its default) to `flush.policy`, `message.timestamp.difference.max.ms` to both limits. Settings that have no
meaning here are refused with the reason; with `topic.settings.without.effect.enable`
they are accepted, and shown as without effect.
"""

_SIZES = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_TIMES = ((DAY_MS, "days"), (HOUR_MS, "hours"), (MINUTE_MS, "minutes"), (SECOND_MS, "s"))


def _with_meaning(key: str, text: str) -> str:
    """`1073741824 (1 GiB)` where a large number would not be read at a glance."""
    if not text.lstrip("-").isdigit() or int(text) <= 0:
        return text
    units = _SIZES if "bytes" in key else _TIMES if takes_duration(key) else ()
    number = int(text) * (MINUTE_MS if key.endswith(".minutes") else 1)
    for size, name in units:
        if number >= size and number % size == 0:
            return f"{text} ({number // size} {name.removesuffix('s') if number == size and name != 's' else name})"
    return text


def _limit(value: int) -> str:
    return {INT64_MAX: "2^63-1", INT32_MAX: "2^31-1"}.get(value, str(value))


def bounds_text(setting: SettingDescription) -> str:
    if setting.words:
        return ", ".join(setting.words)
    if setting.low is not None and setting.high is not None:
        return f"{_limit(setting.low)} to {_limit(setting.high)}"
    return "text"


def default_text(setting: SettingDescription) -> str:
    if setting.process_key is not None:
        return f"`{setting.process_key}`"
    if setting.default == "":
        return "empty"
    if setting.default == str(INT64_MAX):
        return "2^63-1 (no limit)"
    if setting.default == str(INT32_MAX):
        return "2^31-1 (no limit)"
    return _with_meaning(setting.key, setting.default or "")


def _table(settings: Iterable[SettingDescription]) -> list[str]:
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    rows += [f"| `{s.key}` | {default_text(s)} | {bounds_text(s)} | {s.description} |" for s in settings]
    return rows


def render_page() -> str:
    settings = describe_settings()
    lines = [_HEAD, "## Settings of the process", ""]
    lines += _table(s for s in settings if s.scope == "process")
    lines += [_TOPIC_HEAD]
    lines += _table(s for s in settings if s.scope == "topic")
    lines += ["", "## Relations between settings", ""]
    lines += ["They are checked at start, and when a topic is created or altered.", ""]
    lines += ["| rule | because |", "|---|---|"]
    lines += [f"| `{r.rule}` | {r.because} |" for r in PROCESS_RELATIONS]
    lines += [f"| `{r.rule}` | {r.because} |" for r in TOPIC_RELATIONS]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stratalog.settings.page", description="Write docs/configure.md.")
    parser.add_argument("path", nargs="?", type=Path, help="the page to write; default: standard output")
    path: Path | None = parser.parse_args(arguments).path
    if path is None:
        sys.stdout.write(render_page())
    else:
        path.write_text(render_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
