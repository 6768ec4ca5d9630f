"""Who may write to a store that several processes reach: one of them, as long as it leads.

What the store itself compares in each write keeps the metadata safe, never this object and never a clock: a leader that
was deposed while it slept can write nothing. `lost` only lets it stop sooner.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Leadership(Protocol):
    """One candidacy: `campaign` once, lead until `lost`; make another one to try again."""

    @property
    def lost(self) -> asyncio.Event:
        """Set, once and for all, when this process leads no more, or can no longer know that it does."""
        ...

    @property
    def is_leading(self) -> bool:
        """From the end of `campaign` until `lost`."""
        ...

    async def campaign(self) -> None:
        """Wait until this process leads, however long another does; whoever waits sees `leader_address` move.

        Raises InvalidRequest where it can never lead. A store that is away is waited for.
        """
        ...

    def leader_address(self) -> str | None:
        """Where the present leader serves, as this object saw it last; None while nobody leads or it has not looked."""
        ...

    async def resign(self) -> None:
        """Give the lead up, so that another takes it at once; ends a campaign too. `lost` is set."""
        ...
