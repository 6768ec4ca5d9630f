"""An address of something else is told as such, with the option that names the right one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stratalog.admin_api.client import AdminClient
from stratalog.model.errors import OutcomeUnknown, Unavailable


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
    with pytest.raises(Unavailable, match=f"what answers at http://{stranger} is no storage node's admin port") as told:
        AdminClient(stranger).status()
    assert "--admin HOST:PORT" in str(told.value) and "<html>" not in str(told.value)


def test_after_a_change_nobody_knows_what_a_stranger_did(stranger: str) -> None:
    with pytest.raises(OutcomeUnknown, match="is no storage node's admin port"):
        AdminClient(stranger).delete_topic("flights")
