"""`stratalog pipeline run` and `results`: one scheduled run of a job, with a lock and a report of what came of it.

The job runs in a process of its own, so that there is a report even if it is killed, and whatever it prints. Used by
the systemd units of deploy/systemd and by jobs on Kubernetes.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any, Final

import typer

from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.model.job_report import MAX_BYTES, JobReport, decode_report, encode_report
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.terminal.moments import now_ms
from stratalog_cli.terminal.say import say, say_error

ACTIONS: Final = ("archive", "compact", "verify", "export", "sink")
_OF_ONE_TOPIC: Final = ("archive", "sink")
GRACE_SECONDS: Final = 20
"""What a job has to end after SIGTERM. Less than Kubernetes and systemd give to its pod or unit."""
_MOST_OUTPUT: Final = 64 << 20
"""Bytes of a job's result that are read."""
_TAIL_LINES: Final = 20
_LAST_WORDS_SECONDS: Final = 5.0
_PROGRAM: Final = "from stratalog_cli.entry import main; main()"
_FIRST_SIGNAL: Final = 128


def run(
    job: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="After --, the job with its options, as after `stratalog pipeline`: archive, compact, verify, "
            "export or sink.",
        ),
    ],
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="File that gets the result as one line of JSON, also if the job fails."
        ),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            "--lock", metavar="FILE", help="Refuse to run, with exit code 3, while another run holds this file."
        ),
    ] = None,
    topics: Annotated[
        str,
        typer.Option(
            metavar="T[,T...]", help="Only for archive and sink: run it for each of these topics, one after another."
        ),
    ] = "",
) -> None:
    """Run a job once, as a schedule does: not beside another run of it, and with a report of its result.

    Exit code: that of the job; with several topics, of the first that failed.
    """
    names = [one.strip() for one in topics.split(",") if one.strip()]
    commands = _commands(job, names)
    with _held(lock):
        made = _run_all(commands)
        if report is not None:
            _write(report, made)
    if made.exit_code:
        raise typer.Exit(made.exit_code)


def results(
    reports: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Reports of runs, or folders of them (*.json)."),
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the last result of scheduled jobs, from the files that `stratalog pipeline run --report` wrote.

    Exit code 1 if the last run of one of them failed.
    """
    found = [(name, _read(path)) for name, path in _files(reports)]
    if output is OutputFormat.JSON:
        print_json([{"job": name, **json.loads(encode_report(one))} for name, one in found])
    else:
        columns = ("job", "action", "ended (UTC)", "result", "#rows", "#bytes", "#lag", "#findings", "message")
        rows = [_row(name, one) for name, one in found]
        print_table(columns, rows, give_up=("#findings", "#bytes", "message"), flows=("message",))
    if any(not one.is_success for _, one in found):
        raise typer.Exit(1)


def _row(name: str, one: JobReport) -> tuple[str, ...]:
    ended = datetime.fromtimestamp(min(one.finished_ms, 253_402_300_799_000) / 1000, UTC)
    result = "done" if one.is_success else f"exit code {one.exit_code}"
    lag = "" if one.lag_records is None else str(one.lag_records)
    numbers = (str(one.rows), str(one.bytes), lag, str(one.findings))
    return (name, one.action, ended.strftime("%Y-%m-%d %H:%M:%S"), result, *numbers, one.message)


def _files(given: Sequence[Path]) -> list[tuple[str, Path]]:
    """Raises: InvalidRequest where there is no report."""
    found: list[tuple[str, Path]] = []
    for path in given:
        files = sorted(path.glob("*.json")) if path.is_dir() else [path]
        found += ((file.stem, file) for file in files)
    if not found:
        raise InvalidRequest(f"no job has left a report in {', '.join(map(str, given))}")
    return found


def _read(path: Path) -> JobReport:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    try:
        return decode_report(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from None


def _commands(job: Sequence[str], topics: Sequence[str]) -> list[list[str]]:
    """The job's words, once for each topic. Raises: InvalidRequest for what is not a job that can be scheduled."""
    action = job[0] if job else ""
    if action not in ACTIONS:
        raise InvalidRequest(f"a scheduled job is one of {', '.join(ACTIONS)}, after --: {action!r:.80} is not")
    if not topics:
        return [list(job)]
    if action not in _OF_ONE_TOPIC:
        raise InvalidRequest(f"run --topics is for archive and sink: {action} takes --topics itself, after --")
    return [[action, topic, *job[1:]] for topic in topics]


@contextmanager
def _held(path: Path | None) -> Iterator[None]:
    """Holds a file's lock, which a killed process does not leave behind. Raises: Unavailable while another run holds
    it."""
    if path is None:
        yield
        return
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be locked: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(f"another run holds {path}: this one did nothing; its report is of the other") from None
        yield
    finally:
        os.close(descriptor)


def _run_all(commands: Sequence[Sequence[str]]) -> JobReport:
    """Each, also after one that failed: one topic holds up no other. A signal ends them all."""
    started_ms = now_ms()
    made = JobReport(commands[0][0], 0, started_ms, started_ms)
    with _Child() as child:
        for command in commands:
            code, printed, tail = child.run(command)
            made = _added(made, command, code, printed, tail)
            if child.signal_number:
                made = replace(made, exit_code=_FIRST_SIGNAL + child.signal_number)
                break
    return replace(made, finished_ms=max(now_ms(), started_ms))


def _added(made: JobReport, command: Sequence[str], code: int, printed: str, tail: str) -> JobReport:
    if printed:
        say(printed.removesuffix("\n"))
    try:
        numbers = numbers_of(command[0], json.loads(printed))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        numbers, code = {}, code or 2
        tail = tail or "the job printed no result"
    lag = numbers.get("lag_records")
    return replace(
        made,
        exit_code=made.exit_code or code,
        segments=made.segments + numbers.get("segments", 0),
        rows=made.rows + numbers.get("rows", 0),
        bytes=made.bytes + numbers.get("bytes", 0),
        findings=made.findings + numbers.get("findings", 0),
        lag_records=made.lag_records if lag is None else (made.lag_records or 0) + lag,
        is_committed=made.is_committed or bool(numbers.get("changes")),
        message=made.message or (_why(code, numbers, tail) if code else ""),
    )


def _why(code: int, numbers: Mapping[str, int], tail: str) -> str:
    if code == 1 and numbers.get("findings"):
        return f"{numbers['findings']:,} findings: see the result in the log of the run"
    words = tail or "it printed no reason"
    return words if code < _FIRST_SIGNAL else f"ended by signal {code - _FIRST_SIGNAL}: {words}"


def numbers_of(action: str, result: Mapping[str, Any]) -> dict[str, int]:
    """What a report says of the JSON result of a job. Raises: KeyError, TypeError for another shape."""
    match action:
        case "archive":
            return {
                "segments": int(result["segments"]),
                "rows": int(result["rows"]),
                "bytes": int(result["bytes_read"]),
                "findings": int(result["dead"]),
                "lag_records": int(result["lag_records"]),
                "changes": int(result["rows"]) + int(result["dead"]),
            }
        case "compact":
            return {
                "segments": int(result["merged"]),
                "bytes": int(result["bytes_put"]),
                "findings": len(result["not_merged"]),
                "changes": int(result["merged"]),
            }
        case "verify":
            return {
                "segments": int(result["segments"]),
                "bytes": int(result["bytes"]),
                "findings": len(result["findings"]),
                "changes": len(result["repaired"]),
            }
        case "sink":
            return {
                "rows": int(result["records"]),
                "bytes": int(result["bytes_read"]),
                "findings": len(result["unread"]),
                "changes": int(result["records"]),
            }
        case _:
            return {
                "segments": int(result["pieces"]) - int(result["pieces_there"]),
                "rows": int(result["records"]),
                "bytes": int(result["bytes_put"]),
                "findings": len(result["unread"]),
                "changes": int(result["records"]),
            }


class _Child:
    """Runs jobs, each in a process of its own, and hands SIGTERM and SIGINT on to it."""

    def __init__(self) -> None:
        self.signal_number = 0
        """The first that came; 0: none."""
        self._process: subprocess.Popen[bytes] | None = None
        self._kill: threading.Timer | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Child:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._hand_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._kill is not None:
            self._kill.cancel()

    def _hand_on(self, number: int, _: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(number)
            if self._kill is None:
                self._kill = threading.Timer(GRACE_SECONDS, process.kill)
                self._kill.daemon = True
                self._kill.start()

    def run(self, command: Sequence[str]) -> tuple[int, str, str]:
        """Returns its exit code, what it printed, and the end of what it said on standard error."""
        words = [sys.executable, "-c", _PROGRAM, "pipeline", *command, "--output", "json"]
        with tempfile.TemporaryFile() as printed:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.PIPE)
            if self.signal_number:  # it came before there was a process
                self._process.send_signal(self.signal_number)
            lines: deque[str] = deque(maxlen=_TAIL_LINES)
            reading = threading.Thread(target=_pass_on, args=(self._process.stderr, lines), daemon=True)
            reading.start()
            code = self._process.wait()
            # What the job itself started may still run, and hold its standard error open.
            reading.join(_LAST_WORDS_SECONDS)
            printed.seek(0)
            text = printed.read(_MOST_OUTPUT).decode("utf-8", "replace")
        return (_FIRST_SIGNAL - code if code < 0 else code), text, _last_words(list(lines))


def _pass_on(stream: IO[bytes], lines: deque[str]) -> None:
    """Copies the stream to our standard error, and keeps its last lines."""
    for line in stream:
        text = line.decode("utf-8", "replace")
        sys.stderr.write(text)
        sys.stderr.flush()
        if text.strip():
            lines.append(text.strip())


def _last_words(lines: Sequence[str]) -> str:
    """Our own error, or the last line."""
    own = [line for line in lines if line.startswith("stratalog: ")]
    return own[-1].removeprefix("stratalog: ") if own else (lines[-1] if lines else "")


def _write(path: Path, report: JobReport) -> None:
    """As a whole, where the folder can be written. The termination message of a pod is a mounted file in a folder that
    cannot: it is written in place."""
    text = encode_report(report) + "\n"
    beside = path.with_name(f".{path.name}.new")
    try:
        try:
            beside.write_text(text, encoding="ascii")
            os.replace(beside, path)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            path.write_text(text.rstrip("\n"), encoding="ascii")
    except OSError as error:
        say_error(f"the report {path} cannot be written: {error.strerror}")
        say(text.rstrip("\n"), to_stderr=True)
