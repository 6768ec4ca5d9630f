"""A wrong address is reported as such, with the option that names the right one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratalog.admin_api.client import AdminClient
from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog_cli.entry import build_app
from support.cluster_ports import free_port

APP = build_app()


class Stranger(BaseHTTPRequestHandler):
    """A web server that knows nothing of us."""

    def do_GET(self) -> None:
        body = b"<html><h1>Not Found</h1></html>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_web_server_is_no_nodes_admin_port(stranger: str) -> None:
    what = f"what answers at http://{stranger} is not the admin port of a storage node"
    with pytest.raises(Unavailable, match=what) as told:
        AdminClient(stranger).status()
    assert "--admin HOST:PORT" in str(told.value) and "<html>" not in str(told.value)


def test_after_a_change_no_one_knows_what_a_stranger_did(stranger: str) -> None:
    with pytest.raises(OutcomeUnknown, match="is not the admin port of a storage node"):
        AdminClient(stranger).delete_topic("flights")


def list_nodes(meta: str) -> str:
    ran = CliRunner().invoke(build_app(("nodes",)), ["nodes", "list", "--meta", meta])
    assert ran.exit_code == 3
    assert ran.output.count("\n") == 1
    return ran.output


@pytest.mark.fault("meta-service-answers-command")
def test_a_web_server_is_no_meta_service(stranger: str) -> None:
    told = list_nodes(f"http://{stranger}")
    assert told.startswith(
        f"stratalog: what answers at http://{stranger} is not a meta service (GET /v1/nodes: it answers"
    )
    assert "--listen" in told and "<html>" not in told and "MetaUnreachable" not in told


def test_a_web_server_is_no_context(stranger: str, tmp_path: Path) -> None:
    for option, address in (("--admin", stranger), ("--meta", f"http://{stranger}")):
        words = ["context", "add", "web", option, address]
        ran = CliRunner().invoke(build_app(("context",)), words, env={"XDG_CONFIG_HOME": str(tmp_path)})
        assert ran.exit_code == 3 and f"what answers at http://{stranger} is not " in ran.stderr
        assert ran.stderr.count("\n") == 1 and "The context is not kept" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_where_nobody_listens_no_meta_service_answers() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    told = list_nodes(address)
    assert told.startswith(f"stratalog: no meta service answers at {address} (Connection refused)")
    assert "stratalog meta start" in told and "ssl:default" not in told


@pytest.mark.fault("meta-service-answers-command")
def test_what_speaks_no_http_is_no_meta_service() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_as_no_http, args=(server,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        told = list_nodes(address)
    assert told.startswith(
        f"stratalog: what answers at {address} is not a meta service (GET /v1/nodes: it speaks no HTTP"
    )


def answer_as_no_http(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65_536)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")


@pytest.mark.parametrize(
    ("command", "takes"),
    [
        (("produce", "orders", "--admin", "h:1"), "This command takes --bootstrap HOST:PORT"),
        (("mounts", "list", "--meta", "http://h:1"), "This command takes --admin HOST:PORT"),
        (("topics", "list", "-b", "h:1"), "This command takes --admin HOST:PORT"),
    ],
    ids=" ".join,
)
def test_an_address_by_an_option_of_other_commands_reports_which_this_one_takes(
    command: tuple[str, ...], takes: str
) -> None:
    result = CliRunner().invoke(APP, command)
    assert result.exit_code == 2
    assert takes in " ".join(result.output.split())
