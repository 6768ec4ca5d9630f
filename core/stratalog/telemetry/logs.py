"""Logs: one JSON object per line on standard error, or coloured text on a terminal.

Call `configure_logs` once, first thing in a process; after that every module takes `logger(__name__)`. What the
standard library and third parties log goes the same way. Rules: one line per failure, written where it is handled
(never again on the way up); no secret in any line: values of telling names and credentials inside URLs are blanked.
Logging never raises: a line that cannot be written is counted (`log_stream`).

Thread: any; a line is one write.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

from stratalog.telemetry.log_stream import LogStream
from stratalog.telemetry.printable import printable, printable_lines

# structlog imports rich for pretty tracebacks if it is installed: 65 ms and 8 MB at every start for nothing we use.
_HIDES_RICH = "rich" not in sys.modules
if _HIDES_RICH:
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _HIDES_RICH:
        del sys.modules["rich"]

BLANK = "(secret)"

_SECRET_NAMES = re.compile(
    r"(password|passwd|secret|token|credential|authorization|access_?key|private_?key|sasl_?response)", re.IGNORECASE
)
# Texts of others are searched, on the event loop: the time must grow with the length alone. So a word is tried from its
# first character only, and nothing that was taken is given back.
_SECRETS_IN_TEXT = re.compile(
    r"(?P<url>(?<=://)[^/\s:@]++:[^/\s@]++(?=@))"
    r"|(?P<pair>(?<![\w-])(?=[\w-]*?(?:password|passwd|secret|token|signature|credential|access_?key))[\w-]++=)"
    r"[^&;,\s\"']++",
    re.IGNORECASE,
)

LONGEST_TEXT = 4_096
"""Characters of a value that a line shows, the rest is counted: what others say fills no disk and stops no loop."""
LONGEST_TRACE = 65_536
_LONGEST_SECRET = 65_536

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

EventDict = MutableMapping[str, Any]


def without_secrets(text: str) -> str:
    """The text with credentials of URLs and `key=value` secrets blanked."""
    if "=" not in text and "://" not in text:
        return text
    return _SECRETS_IN_TEXT.sub(lambda found: (found["pair"] or "") + BLANK, text)


def _shown(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text without its secrets, and without what is too much of it."""
    # Half a secret is not recognised: what is far behind the cut goes first, and the cut is made in what is clean.
    clean = without_secrets(text[: longest + _LONGEST_SECRET])
    if len(clean) <= longest:
        return clean
    return f"{clean[:longest]}… ({len(text)} characters)"


def is_secret(name: str) -> bool:
    """Whether the value of a field of this name is blanked."""
    return _SECRET_NAMES.search(name) is not None


def _blanked(name: str, value: Any) -> Any:
    if is_secret(name):
        return BLANK
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, dict):
        return {key: _blanked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_blanked("", inner) for inner in value]
    if isinstance(value, BaseException):
        return _shown(f"{type(value).__name__}: {value}")
    return value


def _hide_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if name != "exc_info":
            event[name] = _blanked(name, value)
    return event


def _hide_secrets_in_traceback(_logger: Any, _method: str, event: EventDict) -> EventDict:
    trace = event.get("exception")
    if isinstance(trace, str):
        event["exception"] = _shown(trace, LONGEST_TRACE)
    return event


def _spell_out(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """On a terminal: what clients and servers said cannot steer it. Other values than text are shown as their repr."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable_lines(value) if name == "exception" else printable(value)
    return event


def configure_logs(level: str = "info", *, stream: TextIO | None = None, node_id: int | None = None) -> None:
    """Send all logs of the process to `stream` (standard error), as JSON unless it is a terminal.

    `node_id`, if given, is a field of every line. May be called again; the last call holds.
    """
    out = LogStream(stream if stream is not None else sys.stderr)
    threshold = _LEVELS[level]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _hide_secrets,
    ]
    shared.append(lambda _logger, _method, event: {**event, "lost_lines": out.untold} if out.untold else event)
    if node_id is not None:
        shared.insert(0, lambda _logger, _method, event: {"node": node_id, **event})
    on_terminal = out.isatty()
    last: list[Any] = [structlog.processors.format_exc_info, _hide_secrets_in_traceback]
    if on_terminal:
        # Its own formatting of exceptions would show what the processor before it has not seen.
        renderer = structlog.dev.ConsoleRenderer(
            exception_formatter=structlog.dev.plain_traceback, timestamp_key="time"
        )
        last += (_spell_out, renderer)
    else:
        last.append(structlog.processors.JSONRenderer(default=str))
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=out),  # type: ignore[arg-type]  # it writes and flushes
        cache_logger_on_first_use=False,
    )
    _adopt_standard_logging(out, threshold, [*shared, _origin], last)


def _origin(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["room"] = record.name
    return event


def _adopt_standard_logging(out: LogStream, threshold: int, before: list[Any], last: list[Any]) -> None:
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        if getattr(old, "belongs_to_stratalog", False):
            root.removeHandler(old)
    handler.belongs_to_stratalog = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    # Third parties chatter at info; what they have to say to an operator is a warning.
    root.setLevel(max(threshold, logging.WARNING) if threshold > logging.DEBUG else threshold)


def logger(room: str) -> structlog.typing.FilteringBoundLogger:
    """A logger whose lines name the room (module) they come from. Cheap; may be made at import."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger(room=room)
    return bound
