"""What a reader of the bucket expects of an object, and the error for an object that is another one.

Pure. What is expected comes from the metadata; where no record names the object, from the object's own name.
"""

from __future__ import annotations

from typing import Final

from stratalog.model.errors import Corrupt
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import SealRecord, SegmentIdentity

RESTORE: Final = "'stratalog pipeline verify --repair' restores it from a copy or a node's files"


class WrongObject(Corrupt):
    """The object is undamaged, but it is not the one that its reader means. The reason ends with what to do."""


def check_same(
    what: str, source: str, position: int, *compared: tuple[str, object, object], next_step: str = RESTORE
) -> None:
    """`compared`: name, found and expected value of each field. Raises: WrongObject, which names the first that
    differs, and ends with `next_step`."""
    for name, found, expected in compared:
        if found != expected:
            raise WrongObject(
                f"{what} has {name} {_text(found)}, expected {_text(expected)}; {next_step}",
                source=source,
                position=position,
            )


def check_identity(
    what: str, identity: SegmentIdentity, cluster_id: str, segment: SegmentKey, source: str, position: int = 0
) -> None:
    """Raises: WrongObject for an object of another cluster or segment. A topic is known by its id, not by its name."""
    if identity.cluster_id == cluster_id and identity.key == segment:
        return
    check_same(
        what,
        source,
        position,
        ("cluster", identity.cluster_id, cluster_id),
        ("topic id", identity.topic_id, segment.topic_id),
        ("shard", identity.shard, segment.shard),
        ("epoch", identity.epoch, segment.epoch),
        ("segment base offset", identity.base_offset, segment.base_offset),
    )


def check_seal(what: str, found: SealRecord, expected: SealRecord, source: str) -> None:
    """The fields that say which batches a segment has. All others may differ: a rebuild reads times and producers
    again, and an older layout lacks the fields that were added later. Raises: WrongObject."""
    check_same(
        what,
        source,
        0,
        ("seal epoch", found.epoch, expected.epoch),
        ("seal base offset", found.base_offset, expected.base_offset),
        ("seal end offset", found.end_offset, expected.end_offset),
        ("seal size", found.size_bytes, expected.size_bytes),
        ("seal digest", found.digest, expected.digest),
    )


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
