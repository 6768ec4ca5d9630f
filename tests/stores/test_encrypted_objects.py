"""How objects are encrypted is said with each put, and a customer's key with each request for an object."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

import pytest

from stratalog.model.errors import StratalogError
from stratalog.objects import StoreSettings, open_store
from stratalog.objects.obstore_store import open_s3
from stratalog.objects.urls import S3Location
from support.s3_servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server, control_client

KEY = bytes(range(32))
CUSTOMER = "x-amz-server-side-encryption-customer-"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("server_side_encryption=AES256", ("AES256", None)),
        ("server_side_encryption=aws:kms&sse_kms_key_id=key-1", ("aws:kms", "key-1")),
    ],
)
async def test_the_server_is_told_how_to_encrypt_each_object(
    moto: S3Server, query: str, expected: tuple[str, str | None]
) -> None:
    prefix = f"encrypted-{uuid4().hex[:12]}"
    store = open_store(f"{moto.url(prefix)}&{query}")
    await store.put("a/object", [b"data"])
    assert await store.get("a/object") == b"data"
    await store.close()
    client = control_client(moto)
    told = client.head_object(Bucket=moto.bucket, Key=f"{prefix}/a/object")
    client.close()
    assert (told["ServerSideEncryption"], told.get("SSEKMSKeyId")) == expected


@contextmanager
def recording() -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """A server that takes every put, has no object, and notes the headers of requests. moto knows no customer's key."""
    heard: list[tuple[str, dict[str, str]]] = []

    class Recorder(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            heard.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(200 if self.command == "PUT" else 404)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_GET = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()


async def test_a_customers_key_goes_with_each_request_for_an_object() -> None:
    with recording() as (endpoint, heard):
        config = {
            "endpoint": endpoint,
            "region": REGION,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "server_side_encryption": "sse-c",
            "sse_customer_key_base64": base64.b64encode(KEY).decode(),
        }
        store = open_s3(S3Location("bucket", "", "s3://bucket", config, True), StoreSettings(attempts=1))
        await store.put("object", [b"data"])
        reads = (lambda: store.get("object"), lambda: store.get_range("object", 0, 4), lambda: store.head("object"))
        for read in reads:
            with contextlib.suppress(StratalogError):
                await read()
        await store.close()
    assert {command for command, _ in heard} == {"PUT", "GET", "HEAD"}
    for _, headers in heard:
        assert headers[f"{CUSTOMER}algorithm"] == "AES256"
        assert base64.b64decode(headers[f"{CUSTOMER}key"]) == KEY
