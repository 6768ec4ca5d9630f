"""Shards that roll with a successor chosen again, in the admin API: what `stratalog rebalance --seal` asks."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

MOST_AT_ONCE: Final = 500
"""Segments of one request."""


class SegmentName(BaseModel):
    """A segment; another one of its shard is not meant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic_id: UUID
    shard: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=0)]


class RollElsewhereRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    segments: Annotated[list[SegmentName], Field(max_length=MOST_AT_ONCE)]


class RollingElsewhere(BaseModel):
    node_id: int
    asked: list[SegmentName]
    """Those that this node leads; the rolls continue in the background."""
