"""What Apache Kafka answers to each request of another API while a connection logs in. Its answers are recorded beside
the test that compares them, with this command in `tests/`:

    ../.venv/bin/python -m support.answers_during_login HOST:PORT > unit/kafka/kafka_answers_during_login.json

HOST:PORT is a listener of Kafka with SASL_PLAINTEXT and PLAIN. Requests are made from their schemas, so that each
version of each API has one.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.serial import entity_reader

from stratalog.kafka import messages
from stratalog.kafka.frames import is_flexible
from stratalog.kafka.schema import FieldShape, shape_of
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.server import data_apis
from support.raw_client import RawClient

HANDSHAKE, AUTHENTICATE, _API_VERSIONS = 17, 36, 18
CORRELATION_ID = 77
_RECORDED = Path(__file__).parents[1] / "unit" / "kafka" / "kafka_answers_during_login.json"


def kafkas_answers() -> dict[tuple[int, int], bytes]:
    """By key and version: the answer of Kafka 4.3.1 with its size."""
    recorded = json.loads(_RECORDED.read_text())
    return {(int(name.split(" v")[0]), int(name.split(" v")[1])): bytes.fromhex(one) for name, one in recorded.items()}


def asked() -> list[tuple[int, int]]:
    """Keys and versions: all that a node serves and that does not belong to the login at this point."""
    return sorted(
        (api.key, version)
        for api in (*data_apis(), *control_apis())
        for version in range(api.min_version, api.max_version + 1)
        if api.key != AUTHENTICATE
    )


def request_frame(key: int, version: int) -> bytes:
    """A request with two elements in each of its arrays. Its size comes first."""
    return frame(key, version, messages.encode_entity(request_entity(key, version)))


def frame(key: int, version: int, body: bytes) -> bytes:
    """A request on the wire."""
    tags = b"\0" if is_flexible(key, version) else b""
    head = struct.pack(">hhih", key, version, CORRELATION_ID, 1) + b"c" + tags
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer_of(key: int, version: int, data: bytes) -> Any:
    """The response entity of an answer with its size."""
    has_tags = is_flexible(key, version) and key != _API_VERSIONS
    entity: Any = entity_reader(messages.response_type(key, version))(data, 9 if has_tags else 8)[0]
    return entity


def compared(answer: Any) -> Any:
    """What is compared of a response: everything but the texts, and the order of lists, which varies in Kafka."""
    return _compared(asdict(answer))


def _compared(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _compared(one) for name, one in value.items() if name != "error_message"}
    return sorted(map(_compared, value), key=repr) if isinstance(value, list | tuple) else value


def request_entity(key: int, version: int) -> Any:
    return _entity(messages.request_type(key, version), 1)


def _entity(schema: Any, number: int) -> Any:
    return messages.build(
        schema, **{field.name: _value(field.name, shape_of(field), number) for field in fields(schema)}
    )


def _value(name: str, shape: FieldShape, number: int) -> Any:
    if shape.is_array:
        return [_one(name, shape, one) for one in (1, 2)]
    return _one(name, shape, number)


def _one(name: str, shape: FieldShape, number: int) -> Any:
    if shape.nested is not None:
        return _entity(shape.nested, number)
    if shape.kafka_type == "string":
        return f"{name}-{number}"
    if shape.kafka_type in ("bytes", "records"):
        return b""
    if shape.kafka_type == "bool":
        return False
    if shape.kafka_type == "uuid":
        return UUID(int=number << 64 | number)
    return float(number) if shape.kafka_type == "float64" else number


def answer(address: str, key: int, version: int) -> str:
    """What the server sends once its client has chosen a mechanism, in hexadecimal. Raises: ConnectionError."""
    with RawClient(address) as client:
        client.send(frame(HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN"))
        client.receive_frame()
        client.send(request_frame(key, version))
        return client.receive_frame().hex()


def main() -> None:
    found = {f"{key} v{version}": answer(sys.argv[1], key, version) for key, version in asked()}
    sys.stdout.write(
        "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()) + "\n}\n"
    )


if __name__ == "__main__":
    main()
