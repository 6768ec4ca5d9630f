"""Bounds of what the shard table takes: every number fits into 64 bits, every name into a line.

Beyond offsets and counts, which have rules of their own, these keep what a caller may make durable and send to every
watcher in sane sizes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Final

from stratalog.model.errors import InvalidRequest, LimitExceeded
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import RemotePart, SealRecord

INT64_MAX: Final = 2**63 - 1
MAX_LEASE_MS: Final = 3_600_000
"""A lease is renewed every few seconds; one of an hour already survives any pause of a living holder."""
MAX_LOCKS: Final = 100_000
MAX_SEGMENTS_NAMED: Final = 10_000
"""In one command."""
MAX_NAME_CHARACTERS: Final = 512
MAX_KEY_CHARACTERS: Final = 1024
"""Of an object's key; S3 takes no longer one."""
MAX_DIGEST_BYTES: Final = 64
MAX_RULES: Final = 50_000
MAX_RULES_NAMED: Final = 10_000
"""In one command."""
MAX_RULE_FILTERS: Final = 1_000
"""In one command."""
MAX_RULES_COMPARED: Final = 1_000_000
"""In one command: filters that leave something open, times all rules. Other commands wait meanwhile, about 0.5 s."""
MAX_CREDENTIALS: Final = 10_000
MAX_CREDENTIALS_NAMED: Final = 1_000
"""In one command."""
MAX_SALT_BYTES: Final = 256
MAX_QUOTA_ENTITIES: Final = 20_000
MAX_QUOTAS_NAMED: Final = 5_000
"""Entities in one command."""


def check_names(what: str, names: Iterable[str]) -> None:
    """Raises InvalidRequest for one that is longer than `MAX_NAME_CHARACTERS`."""
    for name in names:
        if len(name) > MAX_NAME_CHARACTERS:
            raise InvalidRequest(
                f"{what}: a name of {len(name)} characters ({name[:40]!r}…) is longer than {MAX_NAME_CHARACTERS}: "
                "shorten it"
            )


def check_segments_named(segments: Sized) -> None:
    """Raises LimitExceeded for more than `MAX_SEGMENTS_NAMED`."""
    if len(segments) > MAX_SEGMENTS_NAMED:
        raise LimitExceeded(f"{len(segments)} segments are named, at most {MAX_SEGMENTS_NAMED} may be: ask in parts")


def is_object_key(key: str) -> bool:
    return 0 < len(key) <= MAX_KEY_CHARACTERS


def is_part_in_bounds(part: RemotePart) -> bool:
    """Whether it names an object and bytes of it; its offsets have their own rules."""
    return (
        is_object_key(part.object_key)
        and part.position >= 0
        and part.size_bytes > 0
        and part.position + part.size_bytes <= INT64_MAX
    )


def is_seal_in_bounds(record: SealRecord) -> bool:
    """Whether all of its numbers fit into 64 bits, and its digest is one."""
    times = (record.first_timestamp_ms, record.max_timestamp_ms)
    return (
        0 < len(record.digest) <= MAX_DIGEST_BYTES
        and 0 <= record.size_bytes <= INT64_MAX
        and 0 <= record.sealed_ms <= INT64_MAX
        and all(_is_int64(time) for time in times)
        and _is_tally_in_bounds(record.producers)
    )


def _is_tally_in_bounds(producers: ProducerTally) -> bool:
    numbers = (producers.count, producers.limit, producers.expiration_ms)
    has_digest = 0 < len(producers.digest) <= MAX_DIGEST_BYTES if producers.count else not producers.digest
    return has_digest and all(0 <= number <= INT64_MAX for number in numbers)


def _is_int64(number: int) -> bool:
    return -INT64_MAX - 1 <= number <= INT64_MAX
