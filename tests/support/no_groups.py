"""The group coordinator of a node that has no group log, and makes none."""

from __future__ import annotations


class NoGroups:
    async def ensure_ready(self) -> None:
        return None
