"""ClickHouse's engine behind an HTTP port, as much of its interface as the sink uses. A program of its own:

    clickhouse_server.py FOLDER

prints its port. No package registry carries ClickHouse's server; the engine is in the package `chdb`, which an
environment of its own holds (`tools/clickhouse.sh`). What an INSERT brings in its body goes through a file, since the
package has no other way for bytes. This module imports nothing of Stratalog.
"""

from __future__ import annotations

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_FORMAT = re.compile(r"^(INSERT INTO \S+ \((.*?)\)) (SETTINGS .*) FORMAT (\w+)$", re.DOTALL)


def main(folder: Path) -> None:
    from chdb import session

    engine = session.Session(str(folder / "data"))
    lock = threading.Lock()
    numbers = iter(range(1 << 30))

    def run(statement: str, body: bytes) -> bytes:
        with lock:
            if not body:
                return bytes(engine.query(statement, "TabSeparated").bytes())
            found = _FORMAT.match(statement)
            assert found is not None, statement
            file = folder / f"{next(numbers)}.body"
            file.write_bytes(body)
            insert, columns, settings, form = found.groups()
            made = f"{insert} {settings} SELECT {columns} FROM file('{file}', '{form}')"
            try:
                return bytes(engine.query(made, "TabSeparated").bytes())
            finally:
                file.unlink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            query = parse_qs(urlsplit(self.path).query)
            statement, body = (query["query"][0], sent) if "query" in query else (sent.decode(), b"")
            try:
                status, answer = 200, run(statement, body)
            except Exception as error:
                status, answer = 500, str(error).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
