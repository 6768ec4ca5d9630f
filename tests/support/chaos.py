"""What befalls a cluster at random: a plan that follows from its seed, and the hand that carries it out.

The bucket is a directory: while it is away something else lies where it was, so no part makes an empty one there.
One etcd member is down or cut off at a time, so that the metadata are there; of nodes and meta services all may be. A
disk is wiped only where the others are whole: three copies bear that, and not another one beside it. Disks of nodes
fail, fill up, hang and are slow where the cluster was made for it (`support.disk_faults`); elsewhere that blow is none.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import NamedTuple

from stratalog.model.errors import Unavailable
from stratalog_cli.cluster.plan import Role
from support.disk_faults import EIO, ENOSPC, HANG, FaultyDirectory
from support.real_cluster import RealCluster
from support.wires import Wire, both_ways, one_way


class What(Enum):
    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    STOP = "stop in order"
    WIPE = "wipe the disk of"
    KILL_ALL = "kill -9 all at once:"
    CUT_OFF = "cut off"
    MAKE_MUTE = "let nobody hear"
    MAKE_DEAF = "let hear nothing:"
    STORE_AWAY = "take away the"
    DISK_FAILS = "let writes fail on"
    DISK_FULL = "fill the disk of"
    DISK_HANGS = "let flushes hang on"
    DISK_SLOW = "slow down the disk of"


_START_S = 100.0
STORE = "object store"
DISKS = (What.DISK_FAILS, What.DISK_FULL, What.DISK_HANGS, What.DISK_SLOW)
_SLOW_MS = 2_000
CUTS = (What.CUT_OFF, What.MAKE_MUTE, What.MAKE_DEAF)


def _harm(disk: FaultyDirectory, what: What) -> None:
    if what is What.DISK_SLOW:
        disk.slow_ms = _SLOW_MS
    elif what is What.DISK_HANGS:
        disk.flush = HANG
    else:
        disk.write = EIO if what is What.DISK_FAILS else ENOSPC


class Blow(NamedTuple):
    wait_s: float
    """After the one before."""
    what: What
    role: Role
    number: int
    down_s: float
    from_share: float
    """The share of the other parts that a cut separates, at least one, in the plan's order rotated by `number`."""


def blows(seed: int) -> Iterator[Blow]:
    """Without an end."""
    chance = random.Random(seed)
    while True:
        role = chance.choices([Role.NODE, Role.META, Role.ETCD], [6, 3, 2])[0]
        what = chance.choices([What.KILL, What.PAUSE, What.STOP, *CUTS], [5, 2, 2, 2, 1, 1])[0]
        if role is Role.NODE and chance.random() < 0.15:
            what = chance.choice([What.WIPE, What.KILL_ALL])
        if chance.random() < 0.08:
            role, what = Role.NODE, What.STORE_AWAY
        if chance.random() < 0.12:
            role, what = Role.NODE, chance.choice(DISKS)
        from_share = chance.choice([0.1, 0.5, 1.0, 1.0])
        yield Blow(chance.uniform(0.2, 5), what, role, chance.randint(1, 3), chance.uniform(0.1, 6), from_share)


TALKS_TO = {Role.NODE: (Role.NODE, Role.META), Role.META: (Role.NODE, Role.ETCD), Role.ETCD: (Role.META, Role.ETCD)}


class Chaos:
    def __init__(self, cluster: RealCluster, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._tell = tell
        self._began = time.monotonic()
        self._struck: dict[str, float] = {}
        """When a part that is down, paused or cut off comes back."""
        self._cuts: dict[str, list[Wire]] = {}
        self._work = ThreadPoolExecutor(1)
        """A stop and a start may wait until a part that is cut off or paused comes back."""
        self._starting: dict[str, Future[None]] = {}
        self.count = 0

    def strike(self, blow: Blow) -> None:
        self._wait(blow.wait_s)
        name = STORE if blow.what is What.STORE_AWAY else self._target(blow)
        names = self._cluster.members if blow.what is What.KILL_ALL else [name]
        away = self.away
        if away.intersection(names):
            return
        if blow.role is Role.ETCD and any(other.startswith(Role.ETCD) for other in away):
            return
        if blow.what is What.WIPE:
            self.wait_until_healthy()
        others = self._others(name, blow) if blow.what in CUTS else []
        self.say(f"{blow.what.value} {' '.join(names)}{' from ' if others else ''}{' '.join(others)}")
        self.count += 1
        self._carry_out(blow.what, names, others)
        self._struck |= dict.fromkeys(names, time.monotonic() + blow.down_s)
        if blow.what is What.WIPE:
            self.wait_until_healthy()

    def _target(self, blow: Blow) -> str:
        if blow.role is not Role.NODE:
            return f"{blow.role}-{blow.number}"
        members = self._cluster.members
        return members[(blow.number - 1) % len(members)]

    @property
    def away(self) -> set[str]:
        """Parts that are down, paused, cut off, or starting again."""
        return {*self._struck, *self._starting}

    def wait_until_healthy(self) -> None:
        """Everything is there again, and nothing needs attention."""
        self.bring_all_back()
        self._cluster.until_calm()

    def bring_all_back(self) -> None:
        for name in list(self._struck):
            self._bring_back(name)
        while self._starting:
            self._note_what_started(_START_S)

    def _carry_out(self, what: What, names: list[str], others: list[str]) -> None:
        (name, *_), cluster = names, self._cluster
        match what:
            case What.KILL | What.KILL_ALL:
                cluster.kill(*names)
            case What.WIPE:
                cluster.kill(name)
                cluster.wipe(name)
            case What.PAUSE:
                cluster.signal(name, signal.SIGSTOP)
            case What.STOP:
                self._work.submit(cluster.stop, name)
            case What.STORE_AWAY:
                cluster.take_store_away()
            case What.DISK_FAILS | What.DISK_FULL | What.DISK_HANGS | What.DISK_SLOW:
                if (disk := cluster.disk_of(name)) is not None:
                    _harm(disk, what)
            case What.CUT_OFF:
                self._cut(name, both_ways([name], others))
            case What.MAKE_MUTE:
                self._cut(name, one_way([name], others))
            case What.MAKE_DEAF:
                self._cut(name, one_way(others, [name]))

    def _others(self, name: str, blow: Blow) -> list[str]:
        names = [part.name for part in self._cluster.plan.parts if part.role in TALKS_TO[blow.role]]
        names = [other for other in names[blow.number :] + names[: blow.number] if other != name]
        return sorted(names[: max(1, round(blow.from_share * len(names)))])

    def _cut(self, name: str, wires: list[Wire]) -> None:
        self._cuts[name] = wires
        self._cluster.wires.cut(wires)

    def _wait(self, wait_s: float) -> None:
        """Brings back meanwhile what is due."""
        until = time.monotonic() + wait_s
        while True:
            now = time.monotonic()
            for name in [name for name, at in self._struck.items() if at <= now]:
                self._bring_back(name)
            self._note_what_started(0)
            if now >= until:
                return
            time.sleep(0.05)

    def _bring_back(self, name: str) -> None:
        del self._struck[name]
        self.say(f"{name} comes back")
        if name == STORE:
            self._cluster.bring_store_back()
            return
        self._cluster.wires.restore(self._cuts.pop(name, ()))
        if name.startswith(Role.NODE) and (disk := self._cluster.disk_of(name)) is not None:
            disk.heal()
        self._cluster.signal(name, signal.SIGCONT)
        self._starting[name] = self._work.submit(self._start, name)

    def _start(self, name: str) -> None:
        if self._cluster.pid(name) is not None or name in self._cluster.retired:
            return
        try:
            self._cluster.start(name)
        except Unavailable as error:
            # It was let go while it was down.
            if "was retired" not in str(error):
                raise

    def _note_what_started(self, wait_s: float) -> None:
        for name, start in list(self._starting.items()):
            if wait_s or start.done():
                start.result(wait_s)
                del self._starting[name]

    def say(self, text: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.1f} s  {text}")
