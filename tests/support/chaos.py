"""What befalls a cluster at random: a plan that follows from its seed, and the hand that carries it out.

One etcd member is down at a time, so that the metadata are there; of nodes and meta services all may be. A disk is
wiped only where the others are whole: three copies bear that, and not another one beside it.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from stratalog_cli.cluster_plan import Role
from support.real_cluster import RealCluster


class What(Enum):
    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    STOP = "stop in order"
    WIPE = "wipe the disk of"
    KILL_ALL = "kill -9 all at once:"


class Blow(NamedTuple):
    wait_s: float
    """After the one before."""
    what: What
    role: Role
    number: int
    down_s: float


def blows(seed: int) -> Iterator[Blow]:
    """Without an end."""
    chance = random.Random(seed)
    while True:
        role = chance.choices([Role.NODE, Role.META, Role.ETCD], [6, 3, 2])[0]
        what = chance.choices([What.KILL, What.PAUSE, What.STOP], [5, 2, 2])[0]
        if role is Role.NODE and chance.random() < 0.15:
            what = chance.choice([What.WIPE, What.KILL_ALL])
        yield Blow(chance.uniform(0.2, 5), what, role, chance.randint(1, 3), chance.uniform(0.1, 6))


class Chaos:
    def __init__(self, cluster: RealCluster, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._began = time.monotonic()
        self._back: dict[str, float] = {}
        """When a part that is down or paused comes back."""
        self.count = 0

    def strike(self, blow: Blow) -> None:
        cluster = self._cluster
        self._rest(blow.wait_s)
        name = f"{blow.role}-{blow.number}"
        names = cluster.names(Role.NODE) if blow.what is What.KILL_ALL else [name]
        if any(other in self._back for other in names):
            return
        if blow.role is Role.ETCD and any(other.startswith(Role.ETCD) for other in self._back):
            return
        if blow.what is What.WIPE:
            self._calm()
        self._say(f"{blow.what.value} {' '.join(names)}")
        self.count += 1
        match blow.what:
            case What.KILL | What.KILL_ALL | What.WIPE:
                cluster.kill(*names)
            case What.PAUSE:
                cluster.signal(name, signal.SIGSTOP)
            case What.STOP:
                cluster.stop(name)
        if blow.what is What.WIPE:
            cluster.wipe(name)
        self._back |= dict.fromkeys(names, time.monotonic() + blow.down_s)
        if blow.what is What.WIPE:
            self._calm()

    def _rest(self, wait_s: float) -> None:
        """Brings back meanwhile what is due."""
        until = time.monotonic() + wait_s
        while True:
            now = time.monotonic()
            for name in [name for name, at in self._back.items() if at <= now]:
                self._bring_back(name)
            if now >= until:
                return
            time.sleep(0.05)

    def _calm(self) -> None:
        for name in list(self._back):
            self._bring_back(name)
        self._cluster.until_calm()

    def _bring_back(self, name: str) -> None:
        del self._back[name]
        self._say(f"{name} comes back")
        self._cluster.signal(name, signal.SIGCONT)
        if self._cluster.pid(name) is None:
            self._cluster.start(name)

    def _say(self, text: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.1f} s  {text}")
