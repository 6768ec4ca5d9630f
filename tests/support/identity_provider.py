"""A token endpoint of OAuth in the test process, with TLS or without: it gives tokens to one client, or the answers of
a test."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from support.certificates import Authority

CLIENT, SECRET = "robot", "sesame:0+/="


@dataclass
class IdentityProvider:
    url: str = ""
    token: str = "token-1"
    expires_in: float | None = 600
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    """Given once each, before tokens are."""
    asked: list[dict[str, Sequence[str]]] = field(default_factory=list)

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        self.asked.append(form)
        if self.answers:
            return self.answers.pop(0)
        expected = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if authorization != expected:
            return 401, json.dumps({"error": "invalid_client", "error_description": authorization}).encode()
        body: dict[str, Any] = {"access_token": self.token, "token_type": "Bearer"}
        return 200, json.dumps(body | ({} if self.expires_in is None else {"expires_in": self.expires_in})).encode()


@contextmanager
def identity_provider(authority: Authority | None = None, folder: Path | None = None) -> Iterator[IdentityProvider]:
    """`authority`: issues its certificate, which is written to `folder`; None: it speaks HTTP without TLS."""
    provider = IdentityProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, body = provider.answer(self.headers.get("Authorization", ""), form)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", provider.url)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}/oauth/token?tenant=a"
    if authority is not None:
        assert folder is not None
        authority.issue("identity provider").write_folder(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        provider.url = provider.url.replace("http:", "https:")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
