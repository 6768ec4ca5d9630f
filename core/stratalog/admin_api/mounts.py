"""Mounts in the admin API: what is asked and answered about them (docs/scaling-spec.md section 5)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MountInfo(BaseModel):
    """One mount, as the node that is asked knows it."""

    name: str
    mode: str
    state: str
    node_id: int
    """The retired node whose data set it is."""
    storage_id: str
    rack: str | None
    holder: int | None
    token: int
    created_ms: int
    volume: str | None
    """In volume mode: where the directory is read; none while it is not."""
    segments: int
    """Sealed segments that the node held when they were sealed and that are still there."""
    bytes: int
    only_there: int
    """Of them those that lie nowhere but in the node's directory."""
    topics: list[str] = []
    """Of a mount that a person made: the names under which it is read."""
    expires_ms: int = 0
    """When it ends by itself; 0: never."""


class CreateMountRequest(BaseModel):
    """Sealed ranges of topics, read as `TOPIC@name`: of a time, or what a snapshot has."""

    model_config = ConfigDict(extra="forbid")

    name: str
    topics: list[str] = []
    """Of a snapshot: all of its topics when there are none."""
    from_ms: int = 0
    until_ms: int = 0
    lasts_ms: int = 0
    """It ends by itself after so long; 0: never."""
    snapshot: str = ""


class MoveMountRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    node_id: int | None = None
    """The node that shall hold it; none: the meta service chooses one."""


class EndMountRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    force_storage_id: str | None = None
    """Of the retired node, whose directory is lost: what only that had is given up."""
