"""A small S3 server in this process that knows storage classes, as the S3 API reference describes them: no emulator
does.

    async with class_server() as server:
        store = open_store(server.url())
        server.archive("GLACIER")          # all objects, as a lifecycle rule does
        server.begin_restore()             # RestoreObject was asked for each
        server.end_restore()               # a copy is there to be read

A GET of an object in an archive class is 403 InvalidObjectState, until a restore is done. HEAD works always and says
class and restore, as a listing does. RestoreObject begins a restore, and refuses what S3 refuses. Objects of class
STANDARD have no `x-amz-storage-class`. Signatures are not looked at.
`class_server_in_thread` is for tests of processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from aiohttp import web

BUCKET = "classes"
ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
_MODIFIED = "Wed, 12 Oct 2022 17:50:00 GMT"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Stored:
    body: bytes
    storage_class: str = "STANDARD"
    restore: str = ""
    """As `x-amz-restore` has it."""

    @property
    def is_readable(self) -> bool:
        return self.storage_class not in ARCHIVES or 'ongoing-request="false"' in self.restore


class ClassServer:
    """Thread-safe enough for tests: each request replaces whole entries."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.requests: Counter[str] = Counter()
        """By method; a GET that was refused for its class as `refused`."""
        self.classes: tuple[str, ...] = (
            "STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", *ARCHIVES,
        )  # fmt: skip
        """That a PUT may ask for."""
        self.restores: list[tuple[str, int, str]] = []
        """Key, days and tier of each restore that was taken."""
        self.hides_state = False
        """HEAD is refused."""
        self.port = 0

    def url(self, prefix: str = "") -> str:
        place = f"s3://{BUCKET}/{prefix}" if prefix else f"s3://{BUCKET}"
        return f"{place}?endpoint=http://127.0.0.1:{self.port}&region=us-east-1&access_key_id=a&secret_access_key=b"

    # What happens to objects ------------------------------------------------------------------------------------------
    def archive(self, storage_class: str = "GLACIER", of: Callable[[str], bool] = lambda _: True) -> None:
        self._change(of, lambda one: replace(one, storage_class=storage_class, restore=""))

    def begin_restore(self) -> None:
        self._change(lambda _: True, lambda one: replace(one, restore='ongoing-request="true"'))

    def end_restore(self) -> None:
        done = 'ongoing-request="false", expiry-date="Fri, 21 Dec 2035 00:00:00 GMT"'
        self._change(lambda _: True, lambda one: replace(one, restore=done if one.storage_class in ARCHIVES else ""))

    def _change(self, of: Callable[[str], bool], change: Callable[[Stored], Stored]) -> None:
        for key, one in list(self.objects.items()):
            if of(key):
                self.objects[key] = change(one)

    # Requests ---------------------------------------------------------------------------------------------------------
    async def handle(self, request: web.Request) -> web.StreamResponse:
        bucket, _, key = request.path.lstrip("/").partition("/")
        self.requests[request.method] += 1
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket")
        if not key:
            return await self._of_bucket(request)
        match request.method:
            case "PUT":
                return await self._put(request, key)
            case "POST" if "restore" in request.query and key in self.objects:
                return self._restore(key, await request.text())
            case "GET" | "HEAD" if key in self.objects:
                return self._read(request, self.objects[key])
            case "GET" | "HEAD":
                return _error(404, "NoSuchKey")
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
            case _:
                return _error(501, "NotImplemented")

    async def _put(self, request: web.Request, key: str) -> web.Response:
        body = await request.read()
        if request.headers.get("if-none-match") == "*" and key in self.objects:
            return _error(412, "PreconditionFailed")
        storage_class = request.headers.get("x-amz-storage-class", "STANDARD")
        if storage_class not in self.classes:
            return _error(400, "InvalidStorageClass", "The storage class you specified is not valid")
        self.objects[key] = Stored(body, storage_class)
        return web.Response(headers={"ETag": _etag(body)})

    def _restore(self, key: str, asked: str) -> web.Response:
        """202 where it begins, 200 where a copy is there, 409 while it is under way."""
        one, days = self.objects[key], re.search(r"<Days>(\d+)</Days>", asked)
        tier = re.search(r"<Tier>(Bulk|Standard|Expedited)</Tier>", asked)
        if one.storage_class not in ARCHIVES:
            return _error(403, "InvalidObjectState", "Restore is not allowed for the object's current storage class")
        if days is None or tier is None:
            return _error(400, "MalformedXML")
        if tier[1] == "Expedited" and one.storage_class == "DEEP_ARCHIVE":
            return _error(400, "InvalidArgument", "Expedited is not there for this class")
        if 'ongoing-request="true"' in one.restore:
            return _error(409, "RestoreAlreadyInProgress")
        self.restores.append((key, int(days[1]), tier[1]))
        if one.restore:
            return web.Response(status=200)
        self.objects[key] = replace(one, restore='ongoing-request="true"')
        return web.Response(status=202)

    def _read(self, request: web.Request, one: Stored) -> web.Response:
        headers = {"ETag": _etag(one.body), "Last-Modified": _MODIFIED, "Accept-Ranges": "bytes"}
        if one.storage_class != "STANDARD":
            headers["x-amz-storage-class"] = one.storage_class
        if one.restore:
            headers["x-amz-restore"] = one.restore
        if request.method == "HEAD":
            if self.hides_state:
                return web.Response(status=403)
            return web.Response(headers=headers, body=one.body)
        if not one.is_readable:
            self.requests["refused"] += 1
            more = f"<StorageClass>{one.storage_class}</StorageClass>"
            return _error(403, "InvalidObjectState", "The operation is not valid for the object's storage class", more)
        found = _RANGE.fullmatch(request.headers.get("range", ""))
        if found is None:
            return web.Response(headers=headers, body=one.body)
        start, size = int(found[1]), len(one.body)
        end = min(int(found[2]) + 1 if found[2] else size, size)
        if start >= size:
            return _error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        return web.Response(status=206, headers=headers, body=one.body[start:end])

    async def _of_bucket(self, request: web.Request) -> web.Response:
        query = request.query
        if request.method == "POST" and "delete" in query:
            keys = re.findall(r"<Key>([^<]*)</Key>", await request.text())
            for key in keys:
                self.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return _xml(f"<DeleteResult>{deleted}</DeleteResult>")
        if "lifecycle" in query:
            return _error(404, "NoSuchLifecycleConfiguration")
        if request.method != "GET" or query.get("list-type") != "2":
            return _error(501, "NotImplemented")
        prefix, after, most = query.get("prefix", ""), query.get("start-after", ""), int(query.get("max-keys", "1000"))
        after = query.get("continuation-token", after)
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        listed = "".join(map(self._listed, keys[:most]))
        is_cut = len(keys) > most
        following = f"<NextContinuationToken>{escape(keys[most - 1])}</NextContinuationToken>" if is_cut else ""
        state = f"<KeyCount>{len(keys[:most])}</KeyCount><IsTruncated>{'true' if is_cut else 'false'}</IsTruncated>"
        return _xml(f"<ListBucketResult><Name>{BUCKET}</Name>{state}{following}{listed}</ListBucketResult>")

    def _listed(self, key: str) -> str:
        one = self.objects[key]
        restore = ""
        if 'ongoing-request="true"' in one.restore:
            restore = "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>"
        elif one.restore:
            until = "<RestoreExpiryDate>2035-12-21T00:00:00.000Z</RestoreExpiryDate>"
            restore = f"<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress>{until}</RestoreStatus>"
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2022-10-12T17:50:00.000Z</LastModified>"
            f"<ETag>{escape(_etag(one.body))}</ETag><Size>{len(one.body)}</Size>"
            f"<StorageClass>{one.storage_class}</StorageClass>{restore}</Contents>"
        )


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _xml(text: str, status: int = 200) -> web.Response:
    return web.Response(
        status=status, text=f'<?xml version="1.0" encoding="UTF-8"?>{text}', content_type="application/xml"
    )


def _error(status: int, code: str, message: str = "as it was asked for", more: str = "") -> web.Response:
    return _xml(f"<Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>", status)


@asynccontextmanager
async def class_server() -> AsyncIterator[ClassServer]:
    server = ClassServer()
    application = web.Application(client_max_size=1 << 30)
    application.router.add_route("*", "/{rest:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


@contextmanager
def class_server_in_thread() -> Iterator[ClassServer]:
    """With a loop of its own."""
    loop, is_over = asyncio.new_event_loop(), asyncio.Event()
    started: list[ClassServer] = []
    is_up = threading.Event()

    async def serve() -> None:
        async with class_server() as server:
            started.append(server)
            is_up.set()
            await is_over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert is_up.wait(30), "the server did not start"
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(30)
        loop.close()
