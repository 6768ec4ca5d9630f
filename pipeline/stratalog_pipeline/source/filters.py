"""Narrows a request by the filters of a query. Pure.

The source applies filters on topic, shard and offset completely. A filter on the timestamp leaves out segments and
batches that are too old; one on the key leaves out chunks without these keys, if segments have a key index. Spark
applies these two to each record again, because it knows what null means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stratalog_pipeline.cold.cutting import Asked

_EQUAL, _IN = ("EqualTo", "EqualNullSafe"), "In"
_FROM = {"GreaterThan": 1, "GreaterThanOrEqual": 0}
_LOOKED_AT_AGAIN = (("timestamp",), ("key",))
_MOST_KEYS = 16
"""Each is looked up in each segment."""
_TO = {"LessThan": 0, "LessThanOrEqual": 1}


def narrow(asked: Asked, filters: Iterable[Any]) -> tuple[Asked, list[Any]]:
    """Returns: the narrowed request, and the filters that Spark still has to apply. Filters are Spark's and are
    recognized by their class names, so that this needs no Spark."""
    left = []
    for one in filters:
        narrowed = _narrow_by(asked, one)
        if narrowed is not None:
            asked = narrowed
        if narrowed is None or tuple(one.attribute) in _LOOKED_AT_AGAIN:
            left.append(one)
    return asked, left


def _narrow_by(asked: Asked, one: Any) -> Asked | None:
    """None for a filter that cannot narrow the request."""
    kind, attribute = type(one).__name__, tuple(getattr(one, "attribute", ()))
    value = getattr(one, "value", None)
    match attribute:
        case ("topic",) if kind in _EQUAL and isinstance(value, str):
            return replace(asked, topics=_both(asked.topics, frozenset((value,))))
        case ("topic",) if kind == _IN:
            return replace(asked, topics=_both(asked.topics, frozenset(one.value)))
        case ("shard",) if kind in _EQUAL and isinstance(value, int):
            return replace(asked, shards=_both(asked.shards, frozenset((value,))))
        case ("shard",) if kind == _IN:
            return replace(asked, shards=_both(asked.shards, frozenset(one.value)))
        case ("offset",) if isinstance(value, int):
            return _offsets(asked, kind, value)
        case ("key",) if kind in _EQUAL and isinstance(value, bytes | bytearray):
            return replace(asked, keys=_both(asked.keys, frozenset((bytes(value),))))
        case ("key",) if kind == _IN and _are_few_keys(one.value):
            return replace(asked, keys=_both(asked.keys, frozenset(map(bytes, one.value))))
        case ("timestamp",) if isinstance(value, datetime):
            at_ms = _milliseconds(value)
            if kind in _FROM or kind in _EQUAL:
                return replace(
                    asked, from_ms=math.floor(at_ms) if asked.from_ms is None else max(asked.from_ms, math.floor(at_ms))
                )
            return asked if kind in _TO else None
        case _:
            return None


def _offsets(asked: Asked, kind: str, value: int) -> Asked | None:
    """Narrows to offsets. Offsets that a filter removes are not a gap, because the query names no offset below the log
    start."""
    low, high = asked.least_offset, asked.to_offset
    if kind in _EQUAL:
        low, high = max(low, value), value + 1 if high is None else min(high, value + 1)
    elif kind in _FROM:
        low = max(low, value + _FROM[kind])
    elif kind in _TO:
        high = value + _TO[kind] if high is None else min(high, value + _TO[kind])
    else:
        return None
    return replace(asked, least_offset=max(low, 0), to_offset=None if high is None else max(high, 0))


def _are_few_keys(values: Iterable[Any]) -> bool:
    keys = list(values)
    return len(keys) <= _MOST_KEYS and all(isinstance(value, bytes | bytearray) for value in keys)


def _both(before: frozenset[Any] | None, now: frozenset[Any]) -> frozenset[Any]:
    return now if before is None else before & now


def _milliseconds(at: datetime) -> float:
    """Spark hands times over without a zone, as the machine's own."""
    return (at if at.tzinfo else at.astimezone(UTC)).timestamp() * 1_000
