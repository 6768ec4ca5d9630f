"""Mounts in the admin API: what is asked and answered about them (docs/scaling.md section 5)."""

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


class MoveMountRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    node_id: int | None = None
    """Who shall hold it; none: whom the meta service chooses."""


class EndMountRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
