"""A node's retirement as it stands in the node's value; fields are only ever added at its end (docs/meta.md)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stratalog.model.ids import SegmentKey
from stratalog.model.retirement import (
    LostRange,
    Retirement,
    RetireMode,
    RetireStep,
    Sighting,
    Wait,
    WaitReason,
)


def encode_retirement(record: Retirement | None) -> list[object] | None:
    if record is None:
        return None
    wait = record.wait
    return [
        record.storage_id,
        record.mode,
        record.step,
        record.begun_ms,
        record.step_since_ms,
        None if wait is None else [wait.reason, wait.words, wait.since_ms],
        [
            [
                one.by_node,
                one.at_ms,
                one.segments,
                [_key(key) for key in one.unconfirmed],
                one.unconfirmed_count,
                one.is_differing,
                one.words,
            ]
            for one in record.sightings
        ],
        record.inventory_key,
        record.is_forced,
        [[_key(lost.segment), lost.base_offset, lost.end_offset] for lost in record.given_up],
        record.given_up_count,
        record.is_volume_lost,
    ]


def decode_retirement(fields: Any) -> Retirement | None:
    """Raises ValueError, TypeError or LookupError for what is none."""
    if fields is None:
        return None
    wait = fields[5]
    return Retirement(
        fields[0],
        RetireMode(fields[1]),
        RetireStep(fields[2]),
        fields[3],
        fields[4],
        None if wait is None else Wait(WaitReason(wait[0]), wait[1], wait[2]),
        tuple(
            Sighting(one[0], one[1], one[2], tuple(map(_read_key, one[3])), one[4], one[5], one[6]) for one in fields[6]
        ),
        fields[7],
        fields[8],
        tuple(LostRange(_read_key(one[0]), one[1], one[2]) for one in fields[9]),
        fields[10],
        fields[11] if len(fields) > 11 else False,
    )


def _key(key: SegmentKey) -> list[object]:
    return [key.topic_id.hex, key.shard, key.epoch, key.base_offset]


def _read_key(fields: Any) -> SegmentKey:
    return SegmentKey(UUID(hex=fields[0]), fields[1], fields[2], fields[3])
