"""A leader is killed while the flights flow, and comes back: who led, when writes stopped and resumed, told in ms."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from demo_cluster import kill_part, start_part
from demo_stage import DemoFailed, Stage
from rich.console import Console
from rich.table import Table

from stratalog.model.errors import StratalogError

KILL_AT, BACK_AT = 0.3, 0.7
"""Shares of the flights that are acknowledged when the leader is killed, and when it is started again."""
_IN_SYNC_S = 60
_POLL_S = 0.05


@dataclass(slots=True)
class Led:
    """The leader and the in-sync replicas of each shard."""

    leader: dict[int, int]
    in_sync: dict[int, set[int]]


class KilledLeader:
    """Requires: `delivered` is called for each acknowledged record, and `step` repeatedly while records flow."""

    def __init__(self, stage: Stage, topic: str, total: int) -> None:
        self._stage, self._topic, self._total = stage, topic, total
        self._answered: dict[int, list[float]] = defaultdict(list)
        """Wall clock of acknowledgements in ms, by shard, from shortly before the kill."""
        self._events: list[tuple[float, str]] = []
        self._killed_ms = 0.0
        self._before: Led | None = None
        self._node = 0
        self._watching: threading.Thread | None = None
        self._back: threading.Thread | None = None
        self._failures: list[str] = []
        self._is_over = threading.Event()

    def delivered(self, message: Any) -> None:
        # The time of the answer, not of this callback.
        answered_ms = message.timestamp()[1] + message.latency() * 1000
        times = self._answered[message.partition()]
        if not times or answered_ms > times[-1]:
            times.append(answered_ms)

    def step(self, count: int) -> None:
        if self._before is None and count >= KILL_AT * self._total:
            self._kill()
        elif self._before is not None and self._back is None and count >= BACK_AT * self._total:
            self._back = threading.Thread(target=self._start_again)
            self._back.start()

    def finish(self) -> None:
        """Waits until the node that was killed is in sync everywhere. Raises: DemoFailed."""
        if self._before is None or self._back is None:
            raise DemoFailed("the flights were over before a leader could be killed and come back")
        self._back.join()
        try:
            self._until_in_sync()
        finally:
            self._is_over.set()
            assert self._watching is not None
            self._watching.join()
        if self._failures:
            raise DemoFailed(self._failures[0])

    def _until_in_sync(self) -> None:
        deadline = time.monotonic() + _IN_SYNC_S
        while not self._failures:
            missing = [shard for shard, members in self._read_leader().in_sync.items() if self._node not in members]
            if not missing:
                self._note(f"node-{self._node} is in sync in all shards again")
                return
            if time.monotonic() > deadline:
                raise DemoFailed(f"after {_IN_SYNC_S} s node-{self._node} is not in sync in {_shards(missing)}")
            time.sleep(0.1)

    def _read_leader(self) -> Led:
        """As a node that lives knows it. Raises: DemoFailed when none does."""
        for node in self._stage.nodes:
            with contextlib.suppress(StratalogError):
                shards = node.client(timeout_s=1).topic(self._topic).shards
                return Led(
                    {shard.shard: shard.leader for shard in shards if shard.leader is not None},
                    {shard.shard: set(shard.isr) for shard in shards},
                )
        raise DemoFailed("no node answers any more")

    def _kill(self) -> None:
        self._before = self._read_leader()
        self._node = self._before.leader[0]
        self._killed_ms = time.time() * 1000
        kill_part(self._stage, f"node-{self._node}")
        led = [shard for shard, leader in self._before.leader.items() if leader == self._node]
        self._events.append((0, f"node-{self._node} is killed (kill -9); it led {_shards(led)}"))
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._watching.start()

    def _watch(self) -> None:
        assert self._before is not None
        known = dict(self._before.leader)
        while not self._is_over.is_set():
            now = self._read_leader().leader
            for shard, leader in now.items():
                if leader != known[shard]:
                    self._note(f"node-{leader} leads shard {shard} (before: node-{known[shard]})")
                    known[shard] = leader
            self._is_over.wait(_POLL_S)

    def _start_again(self) -> None:
        self._note(f"node-{self._node} is started again")
        try:
            start_part(self._stage, f"node-{self._node}")
        except Exception as error:
            self._failures.append(str(error))

    def _note(self, text: str) -> None:
        self._events.append((time.time() * 1000 - self._killed_ms, text))

    # Told -------------------------------------------------------------------------------------------------------
    def print_result(self, console: Console) -> None:
        table = Table(title="A leader is killed while flights flow")
        table.add_column("ms", justify="right")
        table.add_column("what happened")
        stalls = self._stalls()
        for shard, (stopped, resumed) in stalls.items():
            self._events.append((stopped, f"last flight acknowledged in shard {shard}"))
            self._events.append((resumed, f"first flight acknowledged in shard {shard} again"))
        for at_ms, text in sorted(self._events):
            table.add_row(f"{at_ms:,.0f}", text)
        console.print(table)
        longest = max((resumed - stopped for stopped, resumed in stalls.values()), default=0)
        console.print(
            f"Writes to the shards that node-{self._node} led stood still for {longest:,.0f} ms at most; no flight was "
            "refused, and none was written twice."
        )

    def _stalls(self) -> dict[int, tuple[float, float]]:
        """Of each shard that the killed node led: the longest silence that ended after the kill."""
        assert self._before is not None
        found = {}
        for shard, leader in self._before.leader.items():
            times = sorted(at - self._killed_ms for at in self._answered[shard])
            silences = [(later - sooner, sooner, later) for sooner, later in pairwise(times) if later > 0]
            if leader == self._node and silences:
                _, sooner, later = max(silences)
                found[shard] = (sooner, later)
        return found


def _shards(numbers: list[int]) -> str:
    return f"shard {numbers[0]}" if len(numbers) == 1 else f"shards {', '.join(map(str, numbers))}"
