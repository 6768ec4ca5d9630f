"""What a reader was asked for, from Spark's options: texts, whose names have no case. Pure.

docs/pipeline.md section 4 lists them. Raises: InvalidRequest, naming the option.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.cold.cutting import Asked, ShardName
from stratalog_pipeline.source.sizes import parse_bytes

PARTITION_BYTES: Final = 64 << 20
KNOWN: Final = (
    "bucket",
    "path",
    "cluster",
    "meta",
    "topics",
    "snapshot",
    "shards",
    "fromoffset",
    "tooffset",
    "fromtimestamp",
    "totimestamp",
    "ongap",
    "partitionbytes",
    "maxbytespertrigger",
    "startingoffsets",
    "pushfilters",
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`bucket` may hold credentials: it is never shown."""

    bucket: str = field(repr=False)
    cluster_id: str | None = None
    meta_url: str | None = None
    topics: frozenset[str] | None = None
    snapshot: str | None = None
    asked: Asked = field(default_factory=Asked)
    partition_bytes: int = PARTITION_BYTES
    max_bytes_per_trigger: int | None = None
    is_from_latest: bool = False
    is_pushing: bool = True


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    told = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(told) - set(KNOWN))
    if unknown:
        raise InvalidRequest(f"option {unknown[0]} is unknown: known are {', '.join(KNOWN)}")
    bucket = told.get("bucket") or told.get("path")
    if not bucket:
        raise InvalidRequest("option bucket is missing: the URL of the object store, as a node is given it")
    if "snapshot" in told and "meta" in told:
        raise InvalidRequest("options snapshot and meta exclude each other: a snapshot is in the bucket, whole")
    topics = _names(told.get("topics"))
    starting = told.get("startingoffsets", "earliest")
    from_offset, starts = _offsets("fromOffset", told.get("fromoffset"))
    to_offset, ends = _offsets("toOffset", told.get("tooffset"))
    if starting not in ("earliest", "latest"):
        _, starts = _offsets("startingOffsets", starting)
    return ReadOptions(
        bucket=bucket,
        cluster_id=told.get("cluster"),
        meta_url=told.get("meta"),
        topics=topics,
        snapshot=told.get("snapshot"),
        asked=Asked(
            topics=topics,
            shards=_shards(told.get("shards")),
            from_offset=from_offset,
            to_offset=to_offset,
            starts=starts,
            ends=ends,
            from_ms=_time_ms("fromTimestamp", told.get("fromtimestamp")),
            to_ms=_time_ms("toTimestamp", told.get("totimestamp")),
            is_gap_allowed=_choice("onGap", told.get("ongap", "fail"), ("fail", "report")) == "report",
        ),
        partition_bytes=_bytes("partitionBytes", told.get("partitionbytes"), PARTITION_BYTES) or PARTITION_BYTES,
        max_bytes_per_trigger=_bytes("maxBytesPerTrigger", told.get("maxbytespertrigger"), None),
        is_from_latest=starting == "latest",
        is_pushing=_choice("pushFilters", told.get("pushfilters", "true"), ("true", "false")) == "true",
    )


def _names(told: str | None) -> frozenset[str] | None:
    names = frozenset(name.strip() for name in (told or "").split(",") if name.strip())
    return names or None


def _shards(told: str | None) -> frozenset[int] | None:
    if told is None:
        return None
    return frozenset(_number("shards", one.strip()) for one in told.split(","))


def _offsets(option: str, told: str | None) -> tuple[int | None, Mapping[ShardName, int]]:
    """One number for all shards, or a JSON object: topic, shard, offset."""
    if told is None:
        return None, {}
    if not told.lstrip().startswith("{"):
        return _number(option, told), {}
    try:
        found: Any = json.loads(told)
        return None, {
            (topic, _number(option, shard)): _number(option, offset)
            for topic, shards in found.items()
            for shard, offset in shards.items()
        }
    except (ValueError, AttributeError) as error:
        raise InvalidRequest(
            f'option {option} is neither a number nor JSON of this shape: {{"topic": {{"0": 23}}}} ({error})'
        ) from error


def _number(option: str, told: object) -> int:
    try:
        number = int(str(told))
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 63:
        raise InvalidRequest(f"option {option}: {str(told)[:40]!r} is not a number of 0 or more")
    return number


def _time_ms(option: str, told: str | None) -> int | None:
    if told is None or told.lstrip("-").isdigit():
        return None if told is None else int(told)
    try:
        at = datetime.fromisoformat(told)
    except ValueError as error:
        raise InvalidRequest(
            f"option {option}: {told[:40]!r} is neither milliseconds nor a time such as 2013-01-01T00:00:00+00:00"
        ) from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _bytes(option: str, told: str | None, default: int | None) -> int | None:
    if told is None:
        return default
    size = parse_bytes(told)
    if size is None or size < 1:
        raise InvalidRequest(f"option {option}: {told[:40]!r} is not a size, such as 67108864, 64MiB or 1g")
    return size


def _choice(option: str, told: str, allowed: tuple[str, ...]) -> str:
    if told.lower() not in allowed:
        raise InvalidRequest(f"option {option}: {told[:40]!r} is none of {', '.join(allowed)}")
    return told.lower()
