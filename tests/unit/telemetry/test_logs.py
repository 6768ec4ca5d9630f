"""Logs: one JSON object per line, without secrets."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.telemetry.log_stream import LogStream
from stratalog.telemetry.logs import BLANK, LONGEST_TEXT, configure_logs, logger, without_secrets


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logs("info", stream=stream, node_id=3)
    yield stream
    configure_logs("info")


def read(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_that_says_when_where_and_what(lines: io.StringIO) -> None:
    logger("stratalog.disk").warning("disk is slow", waited_ms=120)

    (line,) = read(lines)
    assert line["event"] == "disk is slow"
    assert (line["node"], line["room"], line["level"], line["waited_ms"]) == (3, "stratalog.disk", "warning", 120)
    assert str(line["time"]).endswith("Z")


def test_a_failure_with_its_traceback_is_still_one_line(lines: io.StringIO) -> None:
    try:
        raise OSError("no\nspace")
    except OSError:
        logger("x").exception("write failed")

    (line,) = read(lines)
    assert "OSError: no" in str(line["exception"])
    assert "test_logs.py" in str(line["exception"])


class FullDisk(io.StringIO):
    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


@pytest.mark.fault("log-cannot-written-disk")
def test_a_line_that_cannot_be_written_does_no_harm_and_is_counted() -> None:
    before, stream = LogStream.lost_lines, FullDisk()
    configure_logs("info", stream=stream)
    try:
        stream.is_full = True
        logger("x").warning("first")
        logging.getLogger("third.party").warning("second")
        stream.is_full = False
        logger("x").warning("third")
        logger("x").warning("fourth")
    finally:
        configure_logs("info")
    third, fourth = read(stream)
    assert (third["event"], third["lost_lines"]) == ("third", 2)
    assert "lost_lines" not in fourth
    assert LogStream.lost_lines == before + 2


@pytest.mark.fault("log-cannot-written-disk")
def test_a_missing_reader_is_not_a_fault_of_the_logging_task() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8", buffering=1, closefd=False) as stream:
        configure_logs("info", stream=stream)
        try:
            logger("x").warning("said to nobody")
        finally:
            configure_logs("info")
            os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what it still keeps goes there
    os.close(writer)


def drained(reader: int) -> bytes:
    """All that lies in a pipe."""
    os.set_blocking(reader, False)
    got = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(reader, 1 << 20):
            got += piece
    return got


@pytest.mark.fault("log-cannot-written-disk")
@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_reader_that_stalls_stops_no_logging_task_and_finds_whole_lines(is_blocking: bool) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, is_blocking)
    before, said = LogStream.lost_lines, 200

    def say() -> None:
        for number in range(said):
            logger("x").warning("said", number=number, text="x" * 1_000)

    with open(writer, "w", encoding="utf-8", buffering=1) as stream:
        configure_logs("info", stream=stream)
        try:
            talking = threading.Thread(target=say, daemon=True)
            talking.start()
            talking.join(30)
            is_stopped = talking.is_alive()
            got = drained(reader)
            while talking.is_alive():
                talking.join(0.01)
                got += drained(reader)
            lost = LogStream.lost_lines - before
            logger("x").warning("back")
            got += drained(reader)
        finally:
            configure_logs("info")
    os.close(reader)
    assert not is_stopped
    *lines, last = got.splitlines()
    whole = [line for line in lines if line.endswith(b"}")]
    assert [json.loads(line)["number"] for line in whole] == list(range(said - lost))
    assert len(lines) - len(whole) <= 1, "the one for which there was not room enough"
    assert (json.loads(last)["event"], json.loads(last)["lost_lines"]) == ("back", lost)


def test_lines_below_the_level_are_not_written(lines: io.StringIO) -> None:
    logger("x").debug("chatter")
    assert lines.getvalue() == ""

    configure_logs("debug", stream=lines)
    logger("x").debug("chatter")
    assert len(read(lines)) == 1


def test_a_logger_made_before_the_configuration_follows_it() -> None:
    early = logger("early")
    stream = io.StringIO()
    configure_logs("info", stream=stream)

    early.info("hello")

    assert read(stream)[0]["event"] == "hello"
    configure_logs("info")


def test_what_the_standard_library_logs_goes_the_same_way(lines: io.StringIO) -> None:
    logging.getLogger("asyncio").error("Task exception was never retrieved %s", "secret=abc")
    logging.getLogger("botocore").info("chatter")

    (line,) = read(lines)
    assert line["room"] == "asyncio"
    assert "abc" not in json.dumps(line)


def test_configuring_twice_writes_lines_once(lines: io.StringIO) -> None:
    configure_logs("info", stream=lines)
    logging.getLogger("x").error("once")

    assert len(read(lines)) == 1


@pytest.mark.fault("text-outside-long-logged")
@pytest.mark.parametrize(
    "fields",
    [
        {"password": "hunter2"},
        {"secret_access_key": "hunter2"},
        {"config": {"AWS_SECRET_ACCESS_KEY": "hunter2", "region": "eu"}},
        {"url": "s3://key:hunter2@host/bucket"},
        {"error": RuntimeError("PUT https://h/b?X-Amz-Signature=hunter2&x=1 failed")},
        {"places": ["http://user:hunter2@h/"]},
        {"text": "aws_session_token=hunter2"},
        {"bucket": "s3://b/p?region=eu&secret_access_key=hunter2&endpoint=http://h"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_no_secret_reaches_a_line(lines: io.StringIO, fields: dict[str, object]) -> None:
    logger("x").error("failed", **fields)

    assert "hunter2" not in lines.getvalue()
    assert BLANK in lines.getvalue()


def test_no_secret_reaches_a_line_through_a_traceback(lines: io.StringIO) -> None:
    try:
        raise ValueError("http://user:hunter2@store/")
    except ValueError:
        logger("x").exception("failed at http://user:hunter2@store/")

    assert "hunter2" not in lines.getvalue()


def test_a_terminal_gets_text_instead_of_json() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure_logs("info", stream=stream)
    try:
        raise OSError("gone")
    except OSError:
        logger("x").exception("failed", password="hunter2")

    text = stream.getvalue()
    assert "failed" in text and "OSError" in text and "hunter2" not in text
    with pytest.raises(json.JSONDecodeError):
        json.loads(text.splitlines()[0])
    configure_logs("info")


@pytest.mark.fault("names-record-keys-headers")
def test_a_terminal_is_neither_steered_nor_shown_secrets_by_what_a_client_said() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure_logs("info", stream=stream)
    try:
        raise ValueError("\x1b]0;pwned\x07 at http://user:hunter2@store/")
    except ValueError:
        logger("x").exception("failed", client="\x1b[2J\x9b31m", places=["\x1b[1m"])
    configure_logs("info")

    text = stream.getvalue()
    assert "\\x1b]0;pwned\\x07" in text and "\\x1b[2J" in text and BLANK in text
    assert not any(steering in text for steering in ("\x1b]0", "\x1b[2J", "\x9b", "\x07", "hunter2"))


@given(st.text(max_size=40))
def test_plain_text_passes_unchanged_or_loses_only_a_secret(text: str) -> None:
    clean = without_secrets(text)

    assert clean == text or BLANK in clean
    assert without_secrets(clean).count(BLANK) == clean.count(BLANK)


@pytest.mark.fault("text-outside-long-logged")
@pytest.mark.parametrize(
    "piece", ["a", "token", "token-", "a=", "token=", "://a:", "://a:b@", "=", "token&", "é", "_-"], ids=repr
)
def test_a_text_of_others_takes_time_by_its_length_alone(piece: str) -> None:
    """A client's name of 32,000 letters once held the event loop for minutes; this is thirty times as much."""
    without_secrets(piece * (1_000_000 // len(piece)))


@pytest.mark.fault("text-outside-long-logged")
def test_a_text_that_is_too_long_is_cut_and_counted(lines: io.StringIO) -> None:
    logger("x").warning("refused", client="c" * 100_000, names=["n" * 5_000])

    (line,) = read(lines)
    assert line["client"] == "c" * LONGEST_TEXT + "… (100000 characters)"
    assert line["names"] == ["n" * LONGEST_TEXT + "… (5000 characters)"]


@pytest.mark.fault("text-outside-long-logged")
@pytest.mark.parametrize("before", range(LONGEST_TEXT - 40, LONGEST_TEXT + 4))
def test_no_cut_leaves_half_a_secret(lines: io.StringIO, before: int) -> None:
    for secret in ("https://user:hunter2hunter2@store/", "password=hunter2hunter2"):
        logger("x").warning("refused", why=" " * before + secret + " " * 100)

    assert "hunt" not in lines.getvalue()


def test_a_secret_behind_another_pair_is_seen() -> None:
    assert without_secrets("a=token=abc") == f"a=token={BLANK}"


def test_a_terminal_that_is_never_read_holds_up_no_logging_task() -> None:
    master, terminal = os.openpty()
    with open(terminal, "w") as out:
        stream = LogStream(out)
        writer = threading.Thread(target=lambda: [stream.write("x" * 150 + "\n") for _ in range(300)], daemon=True)
        writer.start()
        writer.join(10)
        is_held_up = writer.is_alive()
        os.close(master)
    assert not is_held_up
