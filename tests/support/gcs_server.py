"""The XML API of Google Cloud Storage for the store tests: moto's S3, in a thread, behind what Google does otherwise.

No registry carries a server that speaks this API as obstore uses it: fake-gcs-server 1.56 refuses its puts ("invalid
uploadType"), does not page its lists, and answers without the codes. Google made the API a dialect of S3's, so this
translates: `x-goog-if-generation-match: 0` for `If-None-Match: *`, 404 for the deletion of a missing
object. Source: "XML API" of Google's pages: headers, "HTTP status and error codes". A request must carry a token that
the key of the service account signed, or one of the metadata server, which is served beside it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

if TYPE_CHECKING:
    from moto.s3.models import S3Backend

ACCOUNT = "stratalog@acme.iam.gserviceaccount.com"
_WORKLOAD_TOKEN = "the-token-of-this-pod"
_TO_MOTO = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""Which it does not check."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

Environ = dict[str, Any]
Start = Callable[..., Any]
App = Callable[[Environ, Start], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class GcsServer:
    """A running server, or another one's port: see `tests/support/scripted_server.py`."""

    port: int
    bucket: str
    credentials_file: Path | None = None
    """Of a service account that may do all."""
    classes: Mapping[str, str] = field(default_factory=dict)
    """`/BUCKET/KEY` to the storage class that its put asked for."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "") -> str:
        """For `open_store`."""
        login = f"credentials_file={self.credentials_file}" if self.credentials_file else "skip_signature=true"
        return f"gs://{self.bucket}/{prefix}?endpoint={self.endpoint}&{login}"

    def through(self, proxy_port: int) -> GcsServer:
        """The same bucket behind a proxy."""
        return replace(self, port=proxy_port)


def write_service_account(file: Path) -> RSAPublicKey:
    """Its key file, as Google's console gives it. Returns: what proves its signatures."""
    key = generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": ACCOUNT, "private_key": pem, "private_key_id": "1"}
    file.write_text(json.dumps(account))
    return key.public_key()


@contextmanager
def gcs_server(folder: Path, bucket: str = "stratalog-gcs") -> Iterator[GcsServer]:
    """All is lost when it ends. `folder` gets the key file. A process has one server for each name of a bucket."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    file = folder / "service-account.json"
    classes: dict[str, str] = {}
    objects = s3_backends["123456789012"]["aws"]
    api = _XmlApi(DomainDispatcherApplication(create_backend_app), objects, write_service_account(file), classes)
    server = make_server("127.0.0.1", 0, api, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        objects.create_bucket(bucket, "us-east-1")
        yield GcsServer(server.server_port, bucket, file, classes)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        objects.buckets.pop(bucket, None)


class _XmlApi:
    def __init__(self, s3: App, objects: S3Backend, key: RSAPublicKey, classes: dict[str, str]) -> None:
        self._s3 = s3
        self._objects = objects
        self._key = key
        self._classes = classes

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith("/computeMetadata/"):
            token = json.dumps({"access_token": _WORKLOAD_TOKEN, "expires_in": 3600, "token_type": "Bearer"})
            return _answer(start, "200 OK", token, ("Metadata-Flavor", "Google"))
        if not self._is_known(environ.get("HTTP_AUTHORIZATION", "")):
            return _answer(start, "401 Unauthorized", "<Error><Code>AuthenticationRequired</Code></Error>")
        environ["HTTP_AUTHORIZATION"] = _TO_MOTO
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        path, mark, query = environ["RAW_URI"].partition("?")
        if environ["REQUEST_METHOD"] == "PUT":
            self._classes[unquote(path)] = environ.get("HTTP_X_GOOG_STORAGE_CLASS", "")  # moto knows those of S3
        environ["RAW_URI"] = environ["REQUEST_URI"] = f"{quote(unquote(path))}{mark}{query}"  # obstore encodes more
        if environ["REQUEST_METHOD"] == "DELETE" and not self._has(unquote(path)):
            environ["REQUEST_METHOD"] = "GET"  # S3 answers the deletion of what is not there with 204
        return self._s3(environ, start)

    def _is_known(self, authorization: str) -> bool:
        token = authorization.removeprefix("Bearer ")
        try:
            claims = jwt.decode(token, self._key, algorithms=["RS256"])
        except jwt.InvalidTokenError:
            return token == _WORKLOAD_TOKEN
        return claims["iss"] == ACCOUNT and claims["scope"] == _SCOPE

    def _has(self, path: str) -> bool:
        bucket, _, key = path.removeprefix("/").partition("/")
        known = self._objects.buckets.get(bucket)
        return known is not None and key in known.keys


def _answer(start: Start, status: str, body: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    start(status, [("Content-Length", str(len(body))), *headers])
    return [body.encode()]
