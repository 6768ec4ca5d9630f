"""Events on the objects they are about: one for each piece of news; the same again counts up instead of standing twice.

They are written behind the passes, which do not wait for them. What cannot be written, or was not when the process
ended, is logged and forgotten: an Event is for people, nothing rests on it.
Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from stratalog.model.errors import Conflict, StratalogError
from stratalog.telemetry.logs import logger
from stratalog_operator.kube.client import MERGE, Kubernetes, api_version, path_of
from stratalog_operator.plan.news import News
from stratalog_operator.resources.names import FIELD_MANAGER
from stratalog_operator.specs.objects import digest
from stratalog_operator.stats import OperatorStats

AT_ONCE: Final = 8
MOST_WAITING: Final = 2_000
"""More are not kept while the API server is slow: the oldest are forgotten first."""
LONGEST_WORDS: Final = 1024
"""Kubernetes takes no longer ones."""
_LONGEST_NAME: Final = 253

log = logger(__name__)


def event_name(one: News) -> str:
    """The same for the same news, and no longer than a name may be, however long that of the object is."""
    ending = f".{digest([one.uid, one.reason, one.words])}"
    return f"{one.name[: _LONGEST_NAME - len(ending)].rstrip('-.')}{ending}"


class Announcer:
    def __init__(self, kubernetes: Kubernetes, stats: OperatorStats, instance: str) -> None:
        """`instance` is this process among the replicas."""
        self._kubernetes = kubernetes
        self._stats = stats
        self._instance = instance
        self._waiting: deque[tuple[str, News]] = deque()
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()

    def announce(self, namespace: str, found: Iterable[News]) -> None:
        """Returns at once."""
        for one in found:
            log.info(
                "an object of a cluster changed",
                kind=one.kind,
                object=f"{namespace}/{one.name}",
                reason=one.reason,
                words=one.words,
            )
            self._waiting.append((namespace, one))
        while len(self._waiting) > MOST_WAITING:
            forgotten_in, forgotten = self._waiting.popleft()
            log.warning("event was not written", object=f"{forgotten_in}/{forgotten.name}", error="too many wait")
        self._news.set()

    async def run(self) -> None:
        """Writes Events until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.write_all()

    async def write_all(self) -> None:
        """Writes all waiting Events, `AT_ONCE` at a time. A call while `run` writes waits until those are written."""
        async with self._writing:
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                async with asyncio.TaskGroup() as telling:
                    for namespace, one in some:
                        telling.create_task(self._write_or_log(namespace, one))

    async def finish(self, patience_s: float) -> None:
        """Writes all waiting Events, for at most `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                await self.write_all()
        except TimeoutError:
            log.warning("the operator stops before all events are written", events=len(self._waiting))

    async def _write_or_log(self, namespace: str, one: News) -> None:
        try:
            await self._write(namespace, one)
        except StratalogError as error:
            log.warning("event was not written", object=f"{namespace}/{one.name}", error=str(error))

    async def _write(self, namespace: str, one: News) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = event_name(one)
        try:
            await self._kubernetes.ask("POST", path_of("Event", namespace), self._event(namespace, name, one, now))
        except Conflict:
            path = path_of("Event", namespace, name)
            there = await self._kubernetes.ask("GET", path)
            body = {
                "metadata": {"resourceVersion": there["metadata"]["resourceVersion"]},
                "count": int(there.get("count") or 1) + 1,
                "lastTimestamp": now,
            }
            await self._kubernetes.ask("PATCH", path, body, query={"fieldManager": FIELD_MANAGER}, content_type=MERGE)
        self._stats.events += 1

    def _event(self, namespace: str, name: str, one: News, now: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": api_version(one.kind),
                "kind": one.kind,
                "name": one.name,
                "namespace": namespace,
                "uid": one.uid,
            },
            "type": "Warning" if one.is_warning else "Normal",
            "reason": one.reason,
            "message": one.words[:LONGEST_WORDS],
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance[:128],
        }
