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
from stratalog.settings.units import DAY_MS, GIB, HOUR_MS, INT32_MAX, INT64_MAX, KIB, MIB, MINUTE_MS, SECOND_MS

_HEAD = """\
# Settings

This page is generated from the code: `python -m stratalog.settings.page docs/configure.md`. Do not edit it.

Keys have Kafka's names where Kafka has one. A process takes its settings from four places; the later one wins:

1. the defaults below,
2. a file, `stratalog start --config FILE`: `KEY=VALUE` lines (`#` begins a comment), or TOML if it ends in `.toml`,
3. the environment: `STRATALOG_` and the key in capitals with `_` for `.`: `STRATALOG_LOG_SEGMENT_BYTES=1048576`,
4. the command line: `--set KEY=VALUE`, as often as needed.

A key that nobody knows is refused, with the nearest names. So is a value outside its bounds. Times and sizes may have
a unit: `7d`, `12h`, `30m`, `10s`, `500ms`; `1GiB`, `64MiB`, `512KiB`, `10MB`. `stratalog settings [WORD]`
lists what stands here.

Addresses and places are options of the command line: `--listen` (`STRATALOG_LISTEN`), `--data` (`STRATALOG_DATA`),
`--bucket` (`STRATALOG_BUCKET`), `--config` (`STRATALOG_CONFIG`), and in a cluster
`--meta` (`STRATALOG_META`) and `--store` (`STRATALOG_STORE`). The other commands find a node with `--admin`
(`STRATALOG_ADMIN`), or several, `--admin HOST:PORT,HOST:PORT`, and print as `--output` (`STRATALOG_OUTPUT`) says.
Where nodes and the meta service ask for a token (`auth.token.file`), `stratalog --token-file FILE COMMAND`
(`STRATALOG_TOKEN_FILE`) shows it.

`--bucket` takes a directory (a path or `file:///DIR`) or `s3://BUCKET/PREFIX?endpoint=URL&region=REGION`. Of S3 the
query may also set `access_key_id`, `secret_access_key`, `session_token`, and `skip_signature` and
`virtual_hosted_style_request` (`true` or `false`). What it does not set comes from the environment:
`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`. Secrets belong
there: every user of the machine can see a command line. What begins with a scheme and a colon is a URL, everything else
is a path, and a path has no `?`: a mistyped URL is refused, without being repeated, and never becomes a directory. In
a query a `+` is a plus; `&`, `#` and `%` inside a value are written `%26`, `%23` and `%25`.
"""

_TOPIC_HEAD = """
## Settings of a topic

Given when a topic is created (`stratalog topics create NAME --set KEY=VALUE`) or altered, also by Kafka admin clients.
A topic that does not set a key takes the process's value.

Some topic settings of Kafka stand for others here: `unclean.leader.election.enable` for `uncleanSeal`, `flush.messages`
(1, or its default) for `flush.policy`, `message.timestamp.difference.max.ms` for both limits. Those that mean
nothing here are refused with the reason; with `topic.settings.without.effect.enable`
they are taken, and shown as without effect.
"""

_SIZES = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_TIMES = ((DAY_MS, "days"), (HOUR_MS, "hours"), (MINUTE_MS, "minutes"), (SECOND_MS, "s"))


def _with_meaning(key: str, text: str) -> str:
    """`1073741824 (1 GiB)` where a large number would not be read at a glance."""
    if not text.lstrip("-").isdigit() or int(text) <= 0:
        return text
    units = _SIZES if "bytes" in key else _TIMES if key.endswith(".ms") else ()
    number = int(text)
    for size, name in units:
        if number >= size and number % size == 0:
            return f"{number} ({number // size} {name.removesuffix('s') if number == size and name != 's' else name})"
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
    lines += ["", "## How settings must fit together", ""]
    lines += ["Checked at start, and when a topic is created or altered.", ""]
    lines += ["| rule | because |", "|---|---|"]
    lines += [f"| `{r.rule}` | {r.because} |" for r in PROCESS_RELATIONS]
    lines += [f"| `{r.rule}` | {r.because} |" for r in TOPIC_RELATIONS]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stratalog.settings.page", description="Write docs/configure.md.")
    parser.add_argument("path", nargs="?", type=Path, help="the page; standard output when left out")
    path: Path | None = parser.parse_args(arguments).path
    if path is None:
        sys.stdout.write(render_page())
    else:
        path.write_text(render_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
