"""Consistent cuts in the admin API: a node holds all its answers for a moment, and reports where its shards ended
then."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

MOST_HOLD_MS = 2_000


class HoldRequest(BaseModel):
    """Hold all answers until this cut is let go, or for `max_ms`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cut_id: UUID
    max_ms: Annotated[int, Field(ge=1, le=MOST_HOLD_MS)] = 1_000


class CutRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    cut_id: UUID


class HeldShard(BaseModel):
    """A shard that the node leads: all that it ever acknowledged lies below `end_offset`."""

    topic: str
    topic_id: UUID
    shard: int
    epoch: int
    log_start_offset: int
    end_offset: int


class Held(BaseModel):
    node_id: int
    cluster_id: str
    shards: list[HeldShard]


class Released(BaseModel):
    node_id: int
    was_held: bool
    """Without a break, until now."""


class Confirmed(BaseModel):
    """Whether the node led each of its shards after all nodes were held, and has committed all that it named."""

    node_id: int
    fault: str | None = None
