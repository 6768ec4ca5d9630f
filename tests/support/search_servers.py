"""Elasticsearch and OpenSearch for tests: a server that speaks as much of their protocol as the sink uses, and can fail
at chosen requests; and a real OpenSearch, which runs in a JVM from the jars of Maven Central (`tools/opensearch.sh`).

The tests of the sink run on both, which is how the first one is kept honest. The real one is `slow`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.cluster_ports import free_port
from support.waiting import eventually_sync

_ROOT = Path(__file__).resolve().parents[2]
_JARS = _ROOT / ".cache" / "opensearch"
NO_OPENSEARCH = "OpenSearch's jars are not there: run tools/opensearch.sh (it needs Maven and Java 17)"


@dataclass(slots=True)
class SearchServer:
    url: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"{}")

    def documents(self, index: str) -> dict[str, Any]:
        """`_id` -> the document."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("POST", f"/{index}/_search", {"size": 1000, "query": {"match_all": {}}})
        hits = found["hits"]["hits"]
        assert len({one["_id"] for one in hits}) == len(hits)
        return {one["_id"]: one["_source"] for one in hits}


# By its protocol ----------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Stored:
    source: Any
    version: int
    seq_no: int


@dataclass(slots=True)
class Failures:
    """What becomes of the next requests to a path that ends with the key; each entry counts for one request."""

    planned: dict[str, list[str]] = field(default_factory=dict)
    """`lost`: done, and the connection is closed without an answer. `busy`: 429. `items-busy`: of a bulk request, every
    second item is 429 and not done. `refused`: every item is 400. `too-large`: 413."""
    bulk_sizes: list[int] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)

    def next(self, path: str) -> str:
        for key, those in self.planned.items():
            if path.endswith(key) and those:
                return those.pop(0)
        return ""


class ProtocolServer(SearchServer):
    """Documents in memory. Source: the index, document and bulk APIs of both products."""

    __slots__ = ("_indexes", "_lock", "_numbers", "failures")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.failures = Failures()
        self._indexes: dict[str, dict[str, _Stored]] = {}
        self._lock = threading.Lock()
        self._numbers = iter(range(1 << 30))

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        path, query = unquote(urlsplit(target).path), parse_qs(urlsplit(target).query)
        index, _, rest = path.lstrip("/").partition("/")
        with self._lock:
            if not rest:
                return self._index(method, index)
            if index not in self._indexes:
                if rest == "_bulk" or (rest.startswith(("_create/", "_doc/")) and method == "PUT"):
                    self._indexes[index] = {}
                else:
                    return 404, _error("index_not_found_exception", f"no such index [{index}]")
            found = self._indexes[index]
            if rest == "_bulk":
                return self._bulk(found, body)
            if rest == "_refresh":
                return 200, {}
            if rest == "_count":
                return 200, {"count": len(found)}
            if rest == "_search":
                return 200, {"hits": {"hits": [{"_id": one, "_source": found[one].source} for one in found]}}
            how, _, name = rest.partition("/")
            return self._document(method, how, found, name, query, body)

    def _index(self, method: str, index: str) -> tuple[int, Any]:
        if method == "HEAD":
            return (200 if index in self._indexes else 404), {}
        if method == "DELETE":
            self._indexes.pop(index)
            return 200, {}
        if index in self._indexes:
            return 400, _error("resource_already_exists_exception", f"index [{index}] already exists")
        self._indexes[index] = {}
        return 200, {"acknowledged": True}

    def _document(
        self, method: str, how: str, found: dict[str, _Stored], name: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, Any]:
        known = found.get(name)
        if method == "GET":
            if known is None:
                return 404, {"found": False}
            return 200, {"found": True, "_source": known.source, "_seq_no": known.seq_no, "_primary_term": 1}
        if method == "DELETE":
            del found[name]
            return 200, {}
        wanted = query.get("if_seq_no")
        is_conflict = known is not None and how == "_create"
        is_conflict |= wanted is not None and (known is None or int(wanted[0]) != known.seq_no)
        if is_conflict:
            return 409, _error("version_conflict_engine_exception", f"[{name}]: version conflict")
        found[name] = _Stored(json.loads(body), 1 if known is None else known.version + 1, next(self._numbers))
        return (201 if known is None else 200), {"_id": name}

    def _bulk(self, found: dict[str, _Stored], body: bytes) -> tuple[int, Any]:
        assert body.endswith(b"\n")
        self.failures.bulk_sizes.append(len(body))
        plan = self.failures.next("/_items")
        lines = body.split(b"\n")[:-1]
        items = []
        for number, (action, source) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
            ((how, meta),) = json.loads(action).items()
            known = found.get(meta["_id"])
            if plan == "items-busy" and number % 2:
                status, error = 429, _error("es_rejected_execution_exception", "rejected execution")["error"]
            elif plan == "refused":
                status, error = 400, _error("mapper_parsing_exception", "failed to parse field [time]")["error"]
            elif known is not None and (how == "create" or known.version > meta["version"]):
                status, error = 409, _error("version_conflict_engine_exception", "document already exists")["error"]
            else:
                found[meta["_id"]] = _Stored(json.loads(source), 1, next(self._numbers))
                status, error = 201, None
            items.append({how: {"_id": meta["_id"], "status": status, **({"error": error} if error else {})}})
        return 200, {"errors": any("error" in next(iter(one.values())) for one in items), "items": items}


def _error(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"root_cause": [{"type": kind, "reason": reason}], "type": kind, "reason": reason}}


@contextmanager
def protocol_server() -> Iterator[ProtocolServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            made.failures.authorizations.add(self.headers.get("Authorization", ""))
            plan = made.failures.next(urlsplit(self.path).path)
            if plan in ("busy", "too-large"):
                status, answer = (
                    (429 if plan == "busy" else 413),
                    _error("circuit_breaking_exception", "data too large"),
                )
            else:
                status, answer = made.answer(self.command, self.path, body)
            if plan == "lost":
                self.close_connection = True
                self.connection.close()
                return
            data = b"" if self.command == "HEAD" else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made = ProtocolServer(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


# A real one ---------------------------------------------------------------------------------------------------------
def opensearch_jars() -> Path | None:
    return _JARS if (_JARS / ".ready").exists() and shutil.which("java") else None


@contextmanager
def opensearch_server(folder: Path) -> Iterator[SearchServer]:
    """A node of its own, without the security plugin, whose distribution no registry carries."""
    port, transport = free_port(), free_port()
    words = ["java", "-Xmx512m", "-cp", f"{_JARS}/lib/*", str(_ROOT / "tests" / "support" / "SearchServer.java")]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*words, str(folder / "home"), str(port), str(transport)], stdout=output, stderr=output
        )
        server = SearchServer(f"http://127.0.0.1:{port}")

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return b"ready" in log.read_bytes()

        try:
            eventually_sync(is_ready, timeout=60)
            yield server
        finally:
            process.kill()
            process.wait()
