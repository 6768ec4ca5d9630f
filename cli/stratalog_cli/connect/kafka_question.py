"""One question to one broker, for what librdkafka has no call for: a request of Kafka's schema, and its answer.

Blocking, on a connection of its own. Versions are named by the caller: they are ones that every broker serves that this
command speaks to.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from stratalog.kafka.errors import MalformedFrame
from stratalog.kafka.frames import is_flexible
from stratalog.kafka.messages import build, encode_entity, request_type, response_type
from stratalog.kafka.reader import read_entity
from stratalog.model.errors import OutcomeUnknown, StratalogError, Unavailable

_TIMEOUT_S: Final = 30.0
_MOST_BYTES: Final = 64 << 20
_CORRELATION_ID: Final = 1
_CLIENT_ID: Final = b"stratalog"


def ask(host: str, port: int, api_key: int, version: int, *, is_write: bool = False, **fields: object) -> Any:
    """Raises: Unavailable where nothing was asked, OutcomeUnknown for a write whose answer did not come."""
    body = encode_entity(build(request_type(api_key, version), **fields))
    flexible = is_flexible(api_key, version)
    head = b"".join(number.to_bytes(2) for number in (api_key, version)) + _CORRELATION_ID.to_bytes(4)
    request = head + len(_CLIENT_ID).to_bytes(2) + _CLIENT_ID + (b"\0" if flexible else b"") + body
    where = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), timeout=_TIMEOUT_S)
    except OSError as error:
        raise Unavailable(f"{where} does not answer ({error.strerror or error})") from None
    lost: type[StratalogError] = OutcomeUnknown if is_write else Unavailable
    with connection:
        try:
            connection.sendall(len(request).to_bytes(4) + request)
            size = int.from_bytes(_exactly(connection, 4))
            if size > _MOST_BYTES:
                raise MalformedFrame(f"an answer of {size} bytes")
            answer = _exactly(connection, size)
            return read_entity(response_type(api_key, version), answer[5 if flexible else 4 :])
        except (OSError, EOFError, MalformedFrame) as error:
            raise lost(f"{where}: the answer was lost ({error}): look before you ask again") from None


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise EOFError("the connection was closed")
        found += part
    return bytes(found)
