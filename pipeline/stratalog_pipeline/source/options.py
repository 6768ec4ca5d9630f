"""What a reader was asked for, from Spark's options: texts, whose names have no case. Pure.

Each option is valid in its mode, or refused by its name. Those that Spark's Kafka source has, too, have its names and
its meaning. docs/pipeline.md section 4 lists all. Raises: InvalidRequest, naming the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from stratalog.model.errors import InvalidRequest
from stratalog_pipeline.cold.cutting import Asked, ShardName

PARTITION_BYTES: Final = 64 << 20
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
LATEST_OFFSET: Final = -1
EARLIEST_OFFSET: Final = -2
"""As offsets in JSON."""


class Mode(StrEnum):
    BATCH = "spark.read"
    STREAM = "spark.readStream"


_BOTH: Final = (
    "bucket",
    "path",
    "cluster",
    "meta",
    "context",
    "tokenFile",
    "certificateFolder",
    "topics",
    "subscribe",
    "subscribePattern",
    "assign",
    "shards",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "onGap",
    "failOnDataLoss",
    "partitionBytes",
)
_OF_ONE: Final = {
    Mode.BATCH: (
        "snapshot",
        "fromOffset",
        "toOffset",
        "fromTimestamp",
        "toTimestamp",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "pushFilters",
    ),
    Mode.STREAM: ("maxBytesPerTrigger", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
}
_OF_KAFKA: Final = {
    "minPartitions": "partitionBytes says how much a task reads",
    "maxRecordsPerPartition": "partitionBytes says how much a task reads",
    "includeHeaders": "each row has its headers: select the columns that are wanted",
    "groupIdPrefix": "no consumer group takes part",
    "kafkaConsumer.pollTimeoutMs": "no Kafka client takes part",
    "fetchOffset.numRetries": "no Kafka client takes part",
    "fetchOffset.retryIntervalMs": "no Kafka client takes part",
}
"""Options of Spark's Kafka source that have no meaning here, and why. Nor have those that begin with `kafka.`."""
_EXCLUDING: Final = (
    ("topics", "subscribe", "subscribePattern", "assign"),
    ("shards", "assign"),
    ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "fromOffset"),
    ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "toOffset"),
    ("onGap", "failOnDataLoss"),
    ("maxBytesPerTrigger", "maxOffsetsPerTrigger"),
    ("snapshot", "meta"),
    ("snapshot", "context"),
)
"""Of each group one at most."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where reading begins or ends, as it was asked for. One of these; none: at the log's start, or its end."""

    option: str
    is_latest: bool = False
    offsets: Mapping[ShardName, int] | None = None
    """Of each shard, or `LATEST_OFFSET`, `EARLIEST_OFFSET`."""
    at_ms: int | None = None
    """The first record of this time or later."""
    times_ms: Mapping[ShardName, int] | None = None
    is_latest_without_record: bool = True
    """Where no record is so late; else that is an error."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """`bucket` may hold credentials: it is never shown."""

    bucket: str = field(repr=False)
    cluster_id: str | None = None
    meta_url: str | None = None
    context: str | None = None
    """Whose meta service is asked, with its token."""
    token_file: str = ""
    certificate_folder: str = ""
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    snapshot: str | None = None
    asked: Asked = field(default_factory=Asked)
    start: Point = Point("startingOffsets")
    end: Point = Point("endingOffsets", is_latest=True)
    partition_bytes: int = PARTITION_BYTES
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    is_pushing: bool = True


class _Given:
    """Options by the names that they have in the documentation."""

    def __init__(self, given: Mapping[str, str], mode: Mode) -> None:
        known = {name.lower(): name for name in (*_BOTH, *_OF_ONE[mode])}
        others = {name.lower(): other for other in Mode if other is not mode for name in _OF_ONE[other]}
        self.mode = mode
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in others:
                raise InvalidRequest(f"option {name} is for {others[name.lower()]}: {mode} does not have it")
            if (why := _why_not(name.lower())) is not None:
                raise InvalidRequest(f"option {name} is of Spark's Kafka source, and has no meaning here: {why}")
            if name.lower() not in known:
                raise InvalidRequest(f"option {name} is unknown: known are {', '.join(known.values())}")
            self._values[known[name.lower()]] = value
        for group in _EXCLUDING:
            both = [name for name in group if name in self._values]
            if len(both) > 1:
                raise InvalidRequest(f"options {both[0]} and {both[1]} exclude each other")

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def first_of(self, *names: str) -> tuple[str, str] | None:
        """The one that was given."""
        return next(((name, self._values[name]) for name in names if name in self._values), None)


def _why_not(name: str) -> str | None:
    if name.startswith("kafka."):
        return "the bucket is read, and no Kafka: give its URL as option bucket, or as the path of load"
    return next((why for other, why in _OF_KAFKA.items() if other.lower() == name), None)


def parse_options(given: Mapping[str, str], mode: Mode) -> ReadOptions:
    options = _Given(given, mode)
    bucket = options.get("bucket") or options.get("path")
    if not bucket:
        raise InvalidRequest("option bucket is missing: the URL of the object store, as a node is given it")
    if options.get("bucket") and options.get("path"):
        raise InvalidRequest("option bucket and the path of load exclude each other: both are the object store's URL")
    named = options.first_of("topics", "subscribe")
    assigned = _assigned(options.get("assign"))
    topics = _names(*named) if named else None if assigned is None else frozenset(topic for topic, _ in assigned)
    from_offset, starts = _offsets("fromOffset", options.get("fromOffset"))
    to_offset, ends = _offsets("toOffset", options.get("toOffset"))
    return ReadOptions(
        bucket=bucket,
        cluster_id=options.get("cluster"),
        meta_url=options.get("meta"),
        context=options.get("context"),
        token_file=options.get("tokenFile") or "",
        certificate_folder=options.get("certificateFolder") or "",
        topics=topics,
        topic_pattern=_pattern(options.get("subscribePattern")),
        snapshot=options.get("snapshot"),
        asked=Asked(
            topics=topics,
            shards=_shards(options.get("shards")),
            only=assigned,
            from_offset=from_offset,
            to_offset=to_offset,
            starts=starts,
            ends=ends,
            from_ms=_time_ms("fromTimestamp", options.get("fromTimestamp")),
            to_ms=_time_ms("toTimestamp", options.get("toTimestamp")),
            is_gap_allowed=_is_gap_allowed(options),
        ),
        start=_start(options),
        end=_end(options),
        partition_bytes=_bytes("partitionBytes", options.get("partitionBytes"), PARTITION_BYTES) or PARTITION_BYTES,
        max_bytes_per_trigger=_bytes("maxBytesPerTrigger", options.get("maxBytesPerTrigger"), None),
        max_offsets_per_trigger=_count("maxOffsetsPerTrigger", options.get("maxOffsetsPerTrigger")),
        min_offsets_per_trigger=_least_offsets(options),
        max_trigger_delay_ms=_duration_ms("maxTriggerDelay", options.get("maxTriggerDelay"), MAX_TRIGGER_DELAY_MS),
        is_pushing=_choice("pushFilters", options.get("pushFilters") or "true", ("true", "false")) == "true",
    )


def _is_gap_allowed(options: _Given) -> bool:
    is_failing = options.get("failOnDataLoss")
    if is_failing is not None:
        return _choice("failOnDataLoss", is_failing, ("true", "false")) == "false"
    on_gap = options.get("onGap")
    return _choice("onGap", "fail" if on_gap is None else on_gap, ("fail", "report")) == "report"


def _least_offsets(options: _Given) -> int | None:
    least = _count("minOffsetsPerTrigger", options.get("minOffsetsPerTrigger"))
    most = _count("maxOffsetsPerTrigger", options.get("maxOffsetsPerTrigger"))
    if least is None and options.get("maxTriggerDelay") is not None:
        raise InvalidRequest("option maxTriggerDelay is for minOffsetsPerTrigger: nothing is delayed without it")
    if least is not None and most is not None and least > most:
        raise InvalidRequest(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
    return least


def _start(options: _Given) -> Point:
    strategy = options.get("startingOffsetsByTimestampStrategy")
    found = options.first_of("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    if strategy is not None and (found is None or found[0] == "startingOffsets"):
        raise InvalidRequest(
            "option startingOffsetsByTimestampStrategy is for startingTimestamp and startingOffsetsByTimestamp"
        )
    if found is None:
        return Point("startingOffsets")
    word = _choice("startingOffsetsByTimestampStrategy", strategy or "error", ("error", "latest"))
    point = _point(*found, ("earliest", "latest"), is_latest_without_record=word == "latest")
    if options.mode is Mode.BATCH and (point.is_latest or LATEST_OFFSET in (point.offsets or {}).values()):
        raise InvalidRequest(f"option startingOffsets: latest is for {Mode.STREAM}: a batch would read nothing")
    return point


def _end(options: _Given) -> Point:
    found = options.first_of("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if found is None:
        return Point("endingOffsets", is_latest=True)
    point = _point(*found, ("latest",), is_latest_without_record=True)
    if EARLIEST_OFFSET in (point.offsets or {}).values():
        raise InvalidRequest("option endingOffsets: -2 is the earliest offset, where nothing ends")
    return point


def _point(option: str, text: str, words: tuple[str, ...], *, is_latest_without_record: bool) -> Point:
    if option.endswith("ByTimestamp"):
        return Point(
            option,
            times_ms=_by_shard(option, text, least=0),
            is_latest_without_record=is_latest_without_record,
        )
    if option.endswith("Timestamp"):
        return Point(option, at_ms=_time_ms(option, text), is_latest_without_record=is_latest_without_record)
    if text.strip().lower() in words:
        return Point(option, is_latest=text.strip().lower() == "latest")
    if not text.lstrip().startswith("{"):
        raise InvalidRequest(
            f"option {option}: {text[:40]!r} is neither {' nor '.join(words)} nor JSON of this shape: "
            '{"topic": {"0": 23}}'
        )
    return Point(option, offsets=_by_shard(option, text, least=EARLIEST_OFFSET))


def _names(option: str, text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InvalidRequest(f"option {option} names no topic: leave it out for all topics")
    return names


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequest(f"option subscribePattern: {text[:80]!r} is not a regular expression: {error}") from error
    return text


def _assigned(text: str | None) -> frozenset[ShardName] | None:
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
        pairs = {(str(topic), _number("assign", shard)) for topic, shards in found.items() for shard in [*shards]}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidRequest(f'option assign is not JSON of this shape: {{"topic": [0, 1]}} ({error})') from error
    if not pairs:
        raise InvalidRequest("option assign names no shard")
    return frozenset(pairs)


def _shards(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    return frozenset(_number("shards", one.strip()) for one in text.split(","))


def _offsets(option: str, text: str | None) -> tuple[int | None, Mapping[ShardName, int]]:
    """One number for all shards, or a JSON object: topic, shard, offset."""
    if text is None:
        return None, {}
    if not text.lstrip().startswith("{"):
        return _number(option, text), {}
    return None, _by_shard(option, text, least=0)


def _by_shard(option: str, text: str, *, least: int) -> Mapping[ShardName, int]:
    try:
        found: Any = json.loads(text)
        return {
            (topic, _number(option, shard)): _number(option, offset, least)
            for topic, shards in found.items()
            for shard, offset in shards.items()
        }
    except (ValueError, AttributeError) as error:
        raise InvalidRequest(
            f'option {option} is not JSON of this shape: {{"topic": {{"0": 23}}}} ({error})'
        ) from error


def _number(option: str, value: object, least: int = 0) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if not least <= number < 1 << 63:
        raise InvalidRequest(f"option {option}: {str(value)[:40]!r} is not a number of {least} or more")
    return number


def _count(option: str, text: str | None) -> int | None:
    return None if text is None else _number(option, text, 1)


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None or _INTEGER.fullmatch(text):
        return None if text is None else int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest(
            f"option {option}: {text[:40]!r} is neither milliseconds nor a time such as 2013-01-01T00:00:00+00:00"
        ) from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _bytes(option: str, text: str | None, default: int | None) -> int | None:
    if text is None:
        return default
    size = parse_bytes(text)
    if size is None or size < 1:
        raise InvalidRequest(f"option {option}: {text[:40]!r} is not a size, such as 67108864, 64MiB or 1g")
    return size


def _duration_ms(option: str, text: str | None, default_ms: int) -> int:
    if text is None:
        return default_ms
    duration_ms = parse_duration_ms(text)
    if duration_ms is None:
        raise InvalidRequest(f"option {option}: {text[:40]!r} is not a duration, such as 500ms, 90s, 15m or 1h")
    return duration_ms


def _choice(option: str, text: str, allowed: tuple[str, ...]) -> str:
    if text.lower() not in allowed:
        raise InvalidRequest(f"option {option}: {text[:40]!r} is none of {', '.join(allowed)}")
    return text.lower()


_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_bytes(text: str) -> int | None:
    """Units are powers of 1,024, as in Spark. None if `text` is not a size."""
    found = _SIZE.fullmatch(text.strip())
    return int(found[1]) << _POWERS[found[2].lower()] if found else None


_DURATION: Final = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d|)", re.IGNORECASE)
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int | None:
    """As in Spark, a number without a unit is in milliseconds. None if `text` is not a duration."""
    found = _DURATION.fullmatch(text.strip())
    return int(found[1]) * _UNITS_MS[found[2].lower()] if found else None
