"""What others chose (records, names, a server's message) is shown, and never steers the terminal."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.admin_api.models import (
    ErrorBody,
    Finding,
    NodeStatus,
    TierBytes,
    TopicInfo,
    VerifyDone,
    VerifySegment,
    VerifyStart,
)
from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.disk.segment_file import encode_segment_header
from stratalog.model.segment import SegmentIdentity
from stratalog_cli.connect.output import print_fields, print_table
from stratalog_cli.entry import build_app
from support.source_tree import REPOSITORY, python_files, relative
from support.stored_samples import IDENTITY

APP = build_app()
EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e\r[red]x[/red][link=http://evil]y[/link]"
SHOWN = "[red]x[/red][link=http://evil]y[/link]"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@contextmanager
def node_that_answers(status: int, body: bytes) -> Iterator[str]:
    """To each request the same, but for /v1/status, which every write asks first."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            is_asked_who = self.path == "/v1/status" and status == 200
            told = who().model_dump_json().encode() if is_asked_who else body
            self.send_response(status)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def who() -> NodeStatus:
    numbers = dict.fromkeys(
        ("node_id", "started_ms", "now_ms", "topics", "shards", "upload_lag_bytes", "upload_lag_shards",
         "disk_total_bytes", "disk_free_bytes", "disk_reserve_bytes", "resident_bytes", "loop_blocks"),
        1,
    )  # fmt: skip
    words = dict.fromkeys(("cluster_id", "version", "kafka_address", "admin_address", "data_dir", "bucket"), EVIL)
    return NodeStatus.model_validate(
        {**numbers, **words, "is_ready": True, "segments": {EVIL: 1}, "bytes": TierBytes()}
    )


def topic() -> TopicInfo:
    return TopicInfo(
        name=EVIL,
        topic_id=EVIL,
        shards=1,
        replication_factor=1,
        is_internal=False,
        created_ms=0,
        settings={EVIL: EVIL},
        segments=1,
        bytes=TierBytes(),
    )


@pytest.mark.parametrize("output", ["table", "json"])
def test_names_and_settings_of_topics_steer_nothing(output: str) -> None:
    with node_that_answers(200, b"[" + topic().model_dump_json().encode() + b"]") as admin:
        ran = CliRunner().invoke(APP, ["topics", "list", "--admin", admin, "--output", output])
    assert ran.exit_code == 0, ran.output
    assert is_harmless(ran.output) and SHOWN in ran.stdout
    if output == "json":
        assert json.loads(ran.stdout)[0]["name"] == EVIL


def test_a_topic_that_was_altered_is_named_harmlessly() -> None:
    with node_that_answers(200, topic().model_dump_json().encode()) as admin:
        ran = CliRunner().invoke(APP, ["topics", "alter", "x", "--set", "a=b", "--admin", admin])
    assert ran.exit_code == 0 and is_harmless(ran.output) and SHOWN in ran.stdout


@pytest.mark.fault("names-record-keys-headers")
def test_a_servers_message_is_one_harmless_line() -> None:
    body = ErrorBody(error="InvalidRequest", message=f"{EVIL}\nstratalog: all is well").model_dump_json().encode()
    with node_that_answers(400, body) as admin:
        ran = CliRunner().invoke(APP, ["status", "--admin", admin])
    assert ran.exit_code == 2 and is_harmless(ran.output)
    assert len(ran.stderr.splitlines()) == 1 and SHOWN in ran.stderr


def test_of_a_stranger_who_speaks_http_nothing_is_shown() -> None:
    with node_that_answers(400, EVIL.encode() + b"\nno JSON") as admin:
        ran = CliRunner().invoke(APP, ["status", "--admin", admin])
    assert ran.exit_code == 3 and is_harmless(ran.output)
    assert "is not the admin port of a storage node" in ran.stderr and "no JSON" not in ran.output


@pytest.mark.fault("names-record-keys-headers")
def test_findings_of_a_node_steer_nothing() -> None:
    finding = Finding(severity="error", place=EVIL, what=f"{EVIL}\nclean", next_step=EVIL)
    segment = VerifySegment(
        topic=EVIL, shard=0, epoch=0, base_offset=0, end_offset=1, state="sealed", local_bytes=1, cold_bytes=0,
        findings=[finding],
    )  # fmt: skip
    lines = (
        VerifyStart(segments=1, bytes=1),
        segment,
        VerifyDone(segments=1, local_bytes=1, cold_bytes=0, errors=1, warnings=0),
    )
    with node_that_answers(200, b"".join(line.model_dump_json().encode() + b"\n" for line in lines)) as admin:
        ran = CliRunner().invoke(APP, ["verify", "--admin", admin])
    assert ran.exit_code == 1 and is_harmless(ran.output) and SHOWN in ran.stdout
    assert not any(line.startswith("clean") for line in ran.stdout.splitlines())


@pytest.mark.fault("names-record-keys-headers")
@pytest.mark.parametrize("output", ["table", "json"])
def test_keys_values_and_headers_of_records_steer_nothing(tmp_path: Path, output: str) -> None:
    identity = SegmentIdentity(IDENTITY.cluster_id, IDENTITY.topic_id, EVIL, 0, 0, 0, 0)
    record = Record(0, 0, EVIL.encode(), EVIL.encode(), ((EVIL, EVIL.encode()), (EVIL, None)))
    path = tmp_path / "x.seg"
    path.write_bytes(encode_segment_header(identity) + encode_batch([record], base_offset=0, epoch=0))
    ran = CliRunner().invoke(APP, ["dump", str(path), "--records", "--output", output])
    assert ran.exit_code == 0, ran.output
    assert is_harmless(ran.output)


def test_file_names_in_a_refusal_steer_nothing(tmp_path: Path) -> None:
    ran = CliRunner().invoke(APP, ["dump", str(tmp_path / EVIL.replace("/", ""))])
    assert ran.exit_code == 2 and is_harmless(ran.output) and "\\x1b]0;pwned" in ran.stderr


@pytest.mark.fault("names-record-keys-headers")
def test_tables_and_fields_take_nothing_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table((SHOWN, f"#{SHOWN}"), [(EVIL, EVIL)], title=SHOWN)
    print_fields([(EVIL, EVIL)], title=SHOWN)
    written = capsys.readouterr().out
    assert is_harmless(written) and written.count(SHOWN) == 8


@pytest.mark.fault("names-record-keys-headers")
def test_every_command_writes_through_the_modules_that_make_text_harmless() -> None:
    """`say` and `output` make text harmless; the completion script is fixed text, and raw."""
    writers = {f"cli/stratalog_cli/{name}.py" for name in ("terminal/say", "connect/output", "terminal/completion")}
    raw = [
        f"{relative(path)}:{node.lineno}"
        for path in python_files(("cli",))
        if relative(path) not in writers
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "typer.echo", "typer.secho", "sys.stdout.write")
    ]
    assert not raw, f"use stratalog_cli.terminal.say: {raw}"
