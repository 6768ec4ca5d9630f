"""Checks that bytes are a record of an Avro schema, before a library makes values of them. Pure.

fastavro accepts more than Avro's specification allows: a negative index of a union or an enum counts from the end, a
number of 70 bits becomes another one, a boolean is true for any byte but 0, and a decimal is rounded to the digits of
its type. So damaged bytes, or those of another schema, would become a row with values that no producer wrote. Cost: one
step of Python for each value; no value is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

_Step: TypeAlias = Callable[[bytes, int], int]
"""Takes a value that begins there, and returns where it ends, which may be behind the last byte. Raises: ValueError,
IndexError where bytes are missing."""
_MOST_SHIFT: Final = 63
_INT32: Final = 1 << 31


def checked_by(parsed: Any) -> Callable[[bytes], None]:
    """`parsed`: by fastavro. What is returned raises ValueError for bytes that are not one record, with the reason."""
    step = _step(parsed, parsed.get("__named_schemas", {}), {})

    def check(value: bytes) -> None:
        try:
            end = step(value, 0)
        except IndexError:
            end = len(value) + 1
        if end > len(value):
            raise ValueError("it ends in the middle of a value")
        if end < len(value):
            raise ValueError("bytes are left after the record")

    return check


def _step(schema: Any, named: Mapping[str, Any], known: dict[str, _Step]) -> _Step:
    """`known`: named types that were met before; some of them contain this one."""
    if isinstance(schema, list):
        return partial(_union, [_step(one, named, known) for one in schema])
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema not in known:
            _step(named[schema], named, known)
        return known[schema]
    if schema.get("logicalType") == "decimal" and schema["type"] in ("bytes", "fixed"):
        size = None if schema["type"] == "bytes" else int(schema["size"])
        found: _Step = partial(_decimal, size, 10 ** int(schema["precision"]))
    else:
        found = _of_kind(schema, named, known)
    if "name" in schema:
        known[schema["name"]] = found
    return found


def _of_kind(schema: Mapping[str, Any], named: Mapping[str, Any], known: dict[str, _Step]) -> _Step:
    match schema["type"]:
        case "record":
            # A record may hold itself: it is known before its fields are.
            steps: list[_Step] = []
            known[schema["name"]] = found = partial(_record, steps)
            steps += [_step(field["type"], named, known) for field in schema["fields"]]
            return found
        case "array":
            return partial(_blocks, _step(schema["items"], named, known))
        case "map":
            return partial(_blocks, partial(_record, [_bytes, _step(schema["values"], named, known)]))
        case "enum":
            return partial(_enum, len(schema["symbols"]))
        case "fixed":
            return partial(_fixed, int(schema["size"]))
        case inner:
            return _step(inner, named, known)


def _number(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _MOST_SHIFT:
            raise ValueError("a number has more than 64 bits")
    if number >> 64:
        raise ValueError("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _null(data: bytes, at: int) -> int:
    return at


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise ValueError(f"a boolean is {data[at]}, which is neither 0 nor 1")
    return at + 1


def _int(data: bytes, at: int) -> int:
    number, at = _number(data, at)
    if not -_INT32 <= number < _INT32:
        raise ValueError("an int has more than 32 bits")
    return at


def _long(data: bytes, at: int) -> int:
    return _number(data, at)[1]


def _bytes(data: bytes, at: int) -> int:
    size, at = _number(data, at)
    if size < 0:
        raise ValueError(f"a value has {size} bytes")
    return at + size


def _fixed(size: int, data: bytes, at: int) -> int:
    return at + size


def _enum(symbols: int, data: bytes, at: int) -> int:
    number, at = _number(data, at)
    if not 0 <= number < symbols:
        raise ValueError(f"symbol {number} of an enum that has {symbols}")
    return at


def _union(branches: list[_Step], data: bytes, at: int) -> int:
    number, at = _number(data, at)
    if not 0 <= number < len(branches):
        raise ValueError(f"branch {number} of a union that has {len(branches)}")
    return branches[number](data, at)


def _record(steps: list[_Step], data: bytes, at: int) -> int:
    for step in steps:
        at = step(data, at)
    return at


def _blocks(step: _Step, data: bytes, at: int) -> int:
    """Of an array, or a map. A negative count has the size of its block behind it."""
    while True:
        count, at = _number(data, at)
        if not count:
            return at
        end = None
        if count < 0:
            size, at = _number(data, at)
            count, end = -count, at + size
        for _ in range(count):
            at = step(data, at)
            if at > len(data):
                raise IndexError
        if end is not None and end != at:
            raise ValueError("a block of a list or map has another size than it says")


def _decimal(size: int | None, limit: int, data: bytes, at: int) -> int:
    if size is None:
        size, at = _number(data, at)
        if size < 0:
            raise ValueError(f"a value has {size} bytes")
    if abs(int.from_bytes(data[at : at + size], "big", signed=True)) >= limit:
        raise ValueError("a decimal has more digits than its type")
    return at + size


_PLAIN: Final[Mapping[str, _Step]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": partial(_fixed, 4),
    "double": partial(_fixed, 8),
    "bytes": _bytes,
    "string": _bytes,
}
