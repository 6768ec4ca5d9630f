"""Leadership over a store that several processes reach: only the leader may write. The compare in each write keeps the
metadata safe, never this object and never a clock: a leader that was replaced while it slept can write nothing. `lost`
only lets it stop sooner.
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
        """Wait until this process leads, however long another one does. `leader_address` is kept up to date meanwhile.

        Raises InvalidRequest where it can never lead. A store that is away is waited for.
        """
        ...

    def leader_address(self) -> str | None:
        """The address of the present leader, as this object read it last; None while there is no leader or it has not
        read it."""
        ...

    async def resign(self) -> None:
        """Give the lead up, so that another takes it at once; ends a campaign too. `lost` is set."""
        ...
