"""Lets one of several replicas of the operator work: the one that holds a Lease. A replica that loses it must end at
once.

The record is changed by compare-and-set alone. A replica trusts only its own clock: it takes over a record that has
been the *same* for 15 s by that clock. The holder renews every 2 s and stops writing (`check`) after 10 s without a
renewal, before another replica may take over. This also holds for a process that was frozen: its first write after it
resumes finds that the time is over.

Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from stratalog.model.errors import Conflict, Fenced, NotFound, StratalogError
from stratalog.telemetry.logs import logger
from stratalog_operator.kube.client import Kubernetes, api_version, path_of

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    duration_s: float = 15.0
    """A record that has not changed for this long may be taken over."""
    renew_within_s: float = 10.0
    """A holder that has not renewed it for this long has lost it."""
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        assert self.retry_s * 3 <= self.renew_within_s, "a lease is lost by one answer that is late"
        assert self.renew_within_s < self.duration_s, "two would hold it at once"


class Lease:
    def __init__(
        self,
        kubernetes: Kubernetes,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float],
    ) -> None:
        """`identity` belongs to this process alone; no earlier process had it. `clock` advances while the process is
        frozen."""
        self._kubernetes = kubernetes
        self._place = path_of("Lease", namespace)
        self._name = name
        self._identity = identity
        self._times = times
        self._clock = clock
        self._held_until = float("-inf")
        self._seen: tuple[object, ...] = ()
        self._seen_at = 0.0
        self.last_answer_at: float | None = None

    @property
    def is_held(self) -> bool:
        return self._clock() < self._held_until

    def check(self) -> None:
        """Raises: Fenced when this process must not write (any more)."""
        if not self.is_held:
            raise Fenced(
                f"lease {self._name}: {self._identity} does not hold it: another replica may be at work; nothing is "
                "written until it is held again"
            )

    async def acquire(self) -> None:
        """Returns when it is held."""
        while True:
            try:
                if await self.attempt():
                    return
            except StratalogError as error:
                log.warning("lease cannot be asked for", error=str(error))
            await asyncio.sleep(self._times.retry_s)

    async def keep(self) -> None:
        """Returns when it is lost."""
        while self.is_held:
            await asyncio.sleep(min(self._times.retry_s, max(0.0, self._held_until - self._clock())))
            try:
                async with asyncio.timeout(self._times.renew_within_s / 2):
                    await self.attempt()
            except (StratalogError, TimeoutError) as error:
                log.warning("lease was not renewed", error=str(error) or "no answer in time")

    async def release(self) -> None:
        """So that the next one need not wait. What fails leaves it to run out."""
        if not self.is_held:
            return
        self._held_until = float("-inf")
        try:
            there = await self._kubernetes.ask("GET", f"{self._place}/{self._name}")
            if there["spec"].get("holderIdentity") == self._identity:
                await self._put(there, holder="")
        except StratalogError as error:
            log.warning("lease was not given back", error=str(error))

    async def attempt(self) -> bool:
        """One try to take or to renew it; returns whether it is held. Raises: StratalogError."""
        began = self._clock()
        try:
            there = await self._kubernetes.ask("GET", f"{self._place}/{self._name}")
        except NotFound:
            there = None
        self.last_answer_at = self._clock()
        if there is not None and not self._is_free(there["spec"]):
            self._held_until = float("-inf")
            return False
        try:
            if there is None:
                body = self._record({}, self._identity)
                await self._kubernetes.ask("POST", self._place, body, is_fenced=False)
            else:
                await self._put(there, holder=self._identity)
        except Conflict:  # another was faster
            return False
        # From before it was asked for: the others count from when they see it.
        self._held_until = began + self._times.renew_within_s
        return True

    def _is_free(self, spec: Mapping[str, Any]) -> bool:
        holder = spec.get("holderIdentity")
        if not holder or holder == self._identity:
            return True
        seen = (holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return self._clock() - self._seen_at >= self._times.duration_s

    async def _put(self, there: Mapping[str, Any], *, holder: str) -> None:
        metadata = {"resourceVersion": there["metadata"]["resourceVersion"]}
        body = self._record(there["spec"], holder, metadata)
        await self._kubernetes.ask("PUT", f"{self._place}/{self._name}", body, is_fenced=False)

    def _record(
        self, before: Mapping[str, Any], holder: str, metadata: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        is_same = before.get("holderIdentity") == holder
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, int(self._times.duration_s)) if holder else 1,
            "acquireTime": before.get("acquireTime", now) if is_same else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if is_same or not before else 1),
        }
        named = {"name": self._name, **(metadata or {})}
        return {"apiVersion": api_version("Lease"), "kind": "Lease", "metadata": named, "spec": spec}


DEFAULT_TIMES: Final = LeaseTimes()
