"""What one control request costs: calls made, memory at its peak, bytes of the answer. Requests are made from their
schema, so that an API that is added is measured as well."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from cProfile import Profile
from dataclasses import dataclass, fields
from typing import Any

from stratalog.kafka import messages
from stratalog.kafka.frames import RequestHeader
from stratalog.kafka.schema import FieldShape, shape_of
from stratalog_node.serve.connections.context import ConnectionInfo, RequestContext
from support.control_bench import ControlBench

NUMBERS = {
    "timestamp": -1,
    "current_leader_epoch": -1,
    "resource_type": 2,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 3,
    "generation_id_or_member_epoch": -1,
    "retention_time": -1,
    "timeout": 0,
    "offset": 0,
}
TEXTS = {"member_id": "", "group_instance_id": None, "transactional_id": None, "value": "1000", "reason": None}
_OF_THE_THING = {"name", "topic", "resource_name", "group_id", "key"}
_NO_ELEMENTS = {"assignments", "configs", "configuration_keys"}
"""Arrays inside a named thing that stay empty unless a test asks for their elements."""


@dataclass(frozen=True, slots=True)
class Cost:
    request_bytes: int
    answer_bytes: int
    calls: int
    peak_bytes: int


def request_of(key: int, version: int, names: Sequence[str], inner: int = 1, **numbers: int) -> Any:
    """A request about these things, in this order; each array inside a thing has `inner` equal elements."""
    return _entity(messages.request_type(key, version), names, inner, NUMBERS | numbers, is_outer=True)


def has_arrays(key: int, version: int) -> bool:
    return any(shape_of(field).is_array for field in fields(messages.request_type(key, version)))


def _entity(schema: Any, names: Sequence[str], inner: int, numbers: dict[str, int], *, is_outer: bool) -> Any:
    values: dict[str, Any] = {}
    for field in fields(schema):
        shape = shape_of(field)
        if not shape.is_array:
            values[field.name] = _plain(field.name, shape, names[0], numbers)
        elif is_outer:
            values[field.name] = [_element(field.name, shape, name, inner, numbers) for name in names]
        else:
            count = 0 if inner == 1 and field.name in _NO_ELEMENTS else inner
            values[field.name] = [_element(field.name, shape, names[0], inner, numbers)] * count
    return messages.build(schema, **values)


def _element(name: str, shape: FieldShape, thing: str, inner: int, numbers: dict[str, int]) -> Any:
    if shape.nested is not None:
        return _entity(shape.nested, [thing], inner, numbers, is_outer=False)
    if shape.kafka_type == "string":
        return thing
    return _plain(name, shape, thing, numbers)


def _plain(name: str, shape: FieldShape, thing: str, numbers: dict[str, int]) -> Any:
    match shape.kafka_type:
        case "string":
            return thing if name in _OF_THE_THING else TEXTS.get(name, "x")
        case "bytes":
            return b""
        case "bool":
            return False
        case "uuid":
            return None
        case _:
            return numbers.get(name, 0)


async def handled(bench: ControlBench, key: int, version: int, request: Any) -> None:
    """Only what the handler does with a decoded request, short of encoding what it returns."""
    api = bench.registry.get(key)
    assert api is not None and api.handler is not None
    await api.handler(_context(bench, key, version), request)


def _context(bench: ControlBench, key: int, version: int) -> RequestContext:
    header = RequestHeader(key, version, 1, "client", 0)
    return RequestContext(bench.services, header, ConnectionInfo("client:1", "here.example", 9092))


class Calls:
    """Counts the calls made on this thread while it is entered, those of functions in C included.

    What tests before left behind is collected first, and nothing meanwhile: their finalizers would count as well.
    """

    def __init__(self) -> None:
        self._profile = Profile()

    def __enter__(self) -> Calls:
        gc.collect()
        gc.disable()
        self._profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        self._profile.disable()
        gc.enable()

    @property
    def count(self) -> int:
        return sum(entry.callcount for entry in self._profile.getstats())


async def answer_of(bench: ControlBench, key: int, version: int, request: Any) -> bytes:
    return await _answer(bench, key, version, messages.encode_entity(request))


async def _answer(bench: ControlBench, key: int, version: int, body: bytes) -> bytes:
    api = bench.registry.get(key)
    assert api is not None and api.handler is not None
    response = await api.handler(_context(bench, key, version), messages.decode_body(key, version, body))
    return b"".join(messages.response_buffers(key, version, 1, response))


async def cost_of(bench: ControlBench, key: int, version: int, request: Any) -> Cost:
    """From the request's bytes to the answer's. What runs on other threads is not counted as calls."""
    body = messages.encode_entity(request)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    calls = Calls()
    try:
        with calls:
            answer = await _answer(bench, key, version, body)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return Cost(len(body), len(answer), calls.count, peak - before)
