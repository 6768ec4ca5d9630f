"""Tries the object store before the first upload: it may be away, or not fit at all (F46, F51)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from stratalog.machines.tiering.upload_events import UploadLimits
from stratalog.model.errors import InvalidRequest, StratalogError
from stratalog.objects.probe import without_name
from stratalog.objects.store import ObjectStore
from stratalog.telemetry.logs import logger
from stratalog_node.backoff import Backoff

log = logger(__name__)


class UploadPreflight:
    """Asks until the store passes. A store that overwrites would let two writers destroy each other's data: an operator
    must change it, and further checks meanwhile do no harm. One log line per kind of trouble."""

    def __init__(
        self, store: ObjectStore, limits: UploadLimits, clock_ms: Callable[[], int], rng: random.Random
    ) -> None:
        self._store = store
        self._limits = limits
        self._clock_ms = clock_ms
        self._rng = rng
        self.waiting_since_ms: int | None = None
        """Since when the store has not passed; None when it has, or was not asked yet."""
        self.trouble: str | None = None
        """Why it has not passed."""
        self.is_asked = asyncio.Event()
        """It has answered, or failed to, for the first time."""

    @property
    def has_passed(self) -> bool:
        return self.is_asked.is_set() and self.trouble is None

    async def passed(self) -> None:
        """Returns when the store has passed."""
        limits = self._limits
        backoff = Backoff(limits.backoff_ms / 1_000, limits.backoff_cap_ms / 1_000, jitter=self._rng.random)
        complained: str | None = None
        while (trouble := await self._ask()) is not None:
            kind, self.trouble = trouble
            self.is_asked.set()
            if self.waiting_since_ms is None:
                self.waiting_since_ms = self._clock_ms()
            if complained != kind:
                complained = kind
                tell = log.error if kind == "unfit" else log.warning
                tell("object store cannot be used, uploads wait", store=self._store.url, reason=self.trouble)
            await backoff.pause()
        if complained is not None:
            log.info("object store answers, uploads begin", store=self._store.url)
        self.waiting_since_ms = self.trouble = None
        self.is_asked.set()

    async def _ask(self) -> tuple[str, str] | None:
        """What is wrong with the store: a kind and a reason; None when nothing is."""
        try:
            async with asyncio.timeout(self._limits.put_timeout_ms / 1_000):
                await self._store.probe()
        except InvalidRequest as error:
            return "unfit", without_name(str(error))
        except (StratalogError, TimeoutError) as error:
            return "away", without_name(str(error)) or "no answer in time"
        return None
