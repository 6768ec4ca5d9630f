"""Nodes that come and go under clients, at random: scenes that follow from a seed, and the hand that plays them.

In a scene one node leaves, or two at once, in either mode; meanwhile parts are struck as in `support.chaos`, or the
leader of the meta service dies at some of the steps at which none has died yet, or the holder of the mount dies before
or after it serves; or the wish is taken back. A node that has left is started by mistake, and must be refused. Each
check requires that a token of a mount belongs to one life of one node forever, and never falls.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from stratalog.meta_api.http_client import HttpMetaClient
from stratalog.model.commands.retirement_commands import CancelRetirement, RetireNode
from stratalog.model.errors import Conflict, Unavailable
from stratalog.model.mounts import Mount, MountState, data_set_name
from stratalog.model.retirement import RetireMode, RetireStep
from stratalog.model.views.retirement_status import RetirementStatus
from stratalog_cli.cluster.plan import MAX_NODES, Role
from stratalog_cli.connect.meta_question import ask_meta
from support.chaos import Blow, Chaos, What, blows
from support.read_only_process import ReadOnlyProcess
from support.real_cluster import RealCluster
from support.waiting import eventually_sync

T = TypeVar("T")
_DONE_S: Final = 120.0
_POLL_S: Final = 0.05
_BLOWS: Final = 4
"""While one leaves under blows."""
_STAY: Final = 3
"""As many as the topics have replicas."""


class SceneKind(Enum):
    BLOWS = "under blows"
    META_LEADER_DIES = "the meta service's leader is killed at"
    HOLDER_DIES_EARLY = "the holder of its mount is killed before it serves"
    HOLDER_DIES_LATE = "the holder of its mount is killed when it serves"
    TWO_AT_ONCE = "another one at once"
    TAKEN_BACK = "taken back at"


class Scene(NamedTuple):
    kind: SceneKind
    number: int
    """Which member leaves, in rotated order."""
    mode: RetireMode
    step: RetireStep


ROUND: Final = (*SceneKind, SceneKind.META_LEADER_DIES)
"""Each fate once, and twice the one that has most steps to come to."""
_EARLY: Final = (RetireStep.PREFLIGHT, RetireStep.CORDON, RetireStep.SEAL, RetireStep.VERIFY)


def scenes(seed: int) -> Iterator[Scene]:
    """Without an end; round by round, each in another order."""
    chance = random.Random(seed)
    while True:
        for kind in chance.sample(ROUND, len(ROUND)):
            mode = chance.choice(list(RetireMode))
            if kind is SceneKind.HOLDER_DIES_EARLY:
                mode = RetireMode.VOLUME  # it does not serve before a process reads the directory
            if kind is SceneKind.META_LEADER_DIES:
                mode = RetireMode.OFFLOAD  # in the other there is nothing to offload
            steps = _EARLY if kind is SceneKind.TAKEN_BACK else list(RetireStep)
            yield Scene(kind, chance.randrange(20), mode, chance.choice(steps))


def bearable(seed: int) -> Iterator[Blow]:
    """Blows that leave every disk: some of what is written here has one copy."""
    return (blow for blow in blows(seed) if blow.what is not What.WIPE)


class LeavingScenes:
    """Requires: whoever made it ends it."""

    deaths: Counter[RetireStep]
    """At which steps a leader of the meta service was killed, as the next one found them."""

    def __init__(self, cluster: RealCluster, chaos: Chaos, seed: int) -> None:
        self._cluster, self._chaos = cluster, chaos
        self._blows = bearable(seed)
        self._lives: dict[tuple[str, int], tuple[int | None, int]] = {}
        """The node and life that had each token of each mount."""
        self._tokens: dict[str, int] = {}
        self._volumes: dict[str, ReadOnlyProcess] = {}
        self.left: list[str] = []
        self.deaths = Counter()

    def end(self) -> None:
        for process in self._volumes.values():
            process.end()

    @property
    def can_continue(self) -> bool:
        """Whether more nodes may join: a cluster on one machine has a most number of nodes, including those that have
        left."""
        return len(self._cluster.names(Role.NODE)) + 2 <= MAX_NODES

    def until_all_is_served(self) -> None:
        """What every node left, whoever looks after it."""

        def is_served() -> bool:
            for name in list(self._volumes):
                self._read_where_it_is(name)
            return all(mount.state is MountState.SERVING for mount in self._mounts())

        self._until(is_served, "something that was left is not served")

    def play(self, scene: Scene) -> None:
        going = 2 if scene.kind is SceneKind.TWO_AT_ONCE else 1
        while len(self._cluster.members) < _STAY + going:
            self._chaos.say(f"{self._cluster.add()} is added")
        members = self._cluster.members
        leave = [members[(scene.number + at) % len(members)] for at in range(going)]
        modes = [scene.mode, *(mode for mode in RetireMode if mode is not scene.mode)]
        at = f" {scene.step}" if scene.kind in (SceneKind.META_LEADER_DIES, SceneKind.TAKEN_BACK) else ""
        for name, mode in zip(leave, modes, strict=False):
            self._chaos.say(f"{name} leaves in {mode} mode: {scene.kind.value}{at}")
            wish = RetireNode(_number(name), mode)
            self._ask(lambda client, wish=wish: client.perform(wish))
        if scene.kind is SceneKind.TAKEN_BACK:
            self._take_back(leave[0], scene.step)
            return
        self._cause(scene, leave[0])
        self._chaos.bring_all_back()
        self._until(lambda: all(self._has_left(name) for name in leave), f"{leave} have not left")
        for name in leave:
            self._comes_back_by_mistake(name)

    def _cause(self, scene: Scene, name: str) -> None:
        match scene.kind:
            case SceneKind.BLOWS:
                for blow in islice(self._blows, _BLOWS):
                    self._chaos.strike(blow)
                    self._mounts()
            case SceneKind.META_LEADER_DIES:
                self._its_leaders_die(name, scene.step)
            case SceneKind.HOLDER_DIES_EARLY | SceneKind.HOLDER_DIES_LATE:
                self._the_holder_dies(name, is_early=scene.kind is SceneKind.HOLDER_DIES_EARLY)
            case SceneKind.TWO_AT_ONCE | SceneKind.TAKEN_BACK:
                pass

    @property
    def steps_without_a_death(self) -> list[RetireStep]:
        return [step for step in RetireStep if not self.deaths[step]]

    def _its_leaders_die(self, name: str, step: RetireStep) -> None:
        """At the steps at which none has died yet, but not at two in a row: the second may be over before another one
        leads. At the given one where there are no such. What may be over too soon to be seen is made to last."""
        wanted: list[RetireStep] = []
        for one in self.steps_without_a_death:
            if not (wanted and _place_of(one) - _place_of(wanted[-1]) == 1):
                wanted.append(one)
        if RetireStep.OFFLOAD in wanted:
            self._cluster.take_store_away()
        starts: list[Future[None]] = []
        with ThreadPoolExecutor(1) as starting:
            try:
                for one in wanted or [step]:
                    killed = self._cluster.leading(Role.META)
                    if one is RetireStep.SEAL:
                        self._until(lambda: self._is_at(name, RetireStep.CORDON), f"{name} is not cordoned")
                        self._cluster.signal(name, signal.SIGSTOP)
                    self._until(lambda one=one: self._is_at(name, one), f"{name} does not come to {one}")
                    if self._step_of(name) is one:
                        self._cluster.kill(killed)
                        self._note_death(name, killed, one)
                        starts.append(starting.submit(self._cluster.start, killed))
                    self._cluster.signal(name, signal.SIGCONT)
                    if one is RetireStep.OFFLOAD:
                        self._cluster.bring_store_back()
                    for started in starts[:-1]:
                        started.result()  # one may be on its way while another is killed: there are three
            finally:
                self._cluster.bring_store_back()
                self._cluster.signal(name, signal.SIGCONT)
        for started in starts:
            started.result()

    def _note_death(self, name: str, killed: str, at: RetireStep) -> None:
        """What the next leader finds first is the step of the death, if that had not ended in between."""
        found = self._step_of(name)
        assert found is at or _is_behind(found, at), f"{name} was at {at}, and is at {found} now"
        self.deaths[at] += found is at
        self._chaos.say(f"{killed} was killed at {at}; the next one finds {found}")
        self._mounts()

    def _step_of(self, name: str) -> RetireStep:
        found = self._status(name)
        assert found is not None, f"nobody knows that {name} leaves"
        return found.retirement.step

    def _the_holder_dies(self, name: str, *, is_early: bool) -> None:
        if not is_early:
            self._until(lambda: self._has_left(name), f"{name} has not left")
        self._until(lambda: self._holder_of(name) is not None, f"nobody holds what {name} left")
        mount = self._mount_of(name)
        assert mount is not None and (mount.state is not MountState.SERVING) == is_early, mount
        holder = f"node-{mount.holder}"
        self._chaos.say(f"{holder}, which holds {mount.name} ({mount.state}), is killed")
        self._cluster.kill(holder)
        self._until(lambda: self._holder_of(name) not in (None, mount.holder), f"nobody takes it from {holder}")
        self._cluster.start(holder)
        if name in self._volumes:
            self._volumes.pop(name).end()  # the process that reads the directory may die, too

    def _take_back(self, name: str, step: RetireStep) -> None:
        self._until(lambda: self._is_at(name, step), f"{name} does not come to {step}")
        try:
            self._ask(lambda client: client.perform(CancelRetirement(_number(name))))
        except Conflict as refused:
            assert "was released" in str(refused), refused  # it was faster
            self._until(lambda: self._has_left(name), f"{name} has not left")
            return
        self._chaos.say(f"{name} stays")
        assert self._status(name) is None

    def _comes_back_by_mistake(self, name: str) -> None:
        eventually_sync(lambda: self._cluster.pid(name) is None, 60)
        before = self._mount_of(name)
        why = "in use by another process" if name in self._volumes else "was retired"
        try:
            self._cluster.start(name)
        except Unavailable as refused:
            assert why in str(refused), refused
        else:
            raise AssertionError(f"{name} was let in again")
        after = self._mount_of(name)
        assert (before is None) == (after is None), f"{before} became {after}"
        self.left.append(name)
        if name not in self._volumes:
            shutil.rmtree(self._data(name))
        self._chaos.say(f"{name} has left, and is refused")

    # What is looked at --------------------------------------------------------------------------------------------
    def _has_left(self, name: str) -> bool:
        found = self._status(name)
        if found is None or not found.retirement.step.is_released:
            return False
        self._cluster.retired.add(name)
        if found.retirement.mode is RetireMode.VOLUME and self._holder_of(name) is not None:
            self._read_where_it_is(name)
        return found.retirement.step is RetireStep.DONE

    def _read_where_it_is(self, name: str) -> None:
        if name in self._volumes and self._volumes[name].is_running:
            return
        if self._cluster.pid(name) is None:  # else its own process has it still
            said = self._data(name).with_suffix(".read-only.log")
            self._volumes[name] = ReadOnlyProcess(self._data(name), self._cluster.meta_urls, said)

    def _is_at(self, name: str, step: RetireStep) -> bool:
        """Or behind it."""
        found = self._status(name)
        if found is not None and found.retirement.step.is_released:
            self._has_left(name)
        steps = list(RetireStep)
        return found is not None and steps.index(found.retirement.step) >= steps.index(step)

    def _status(self, name: str) -> RetirementStatus | None:
        found = self._ask(lambda client: client.retirements())
        return next((one for one in found if one.node_id == _number(name)), None)

    def _mount_of(self, name: str) -> Mount | None:
        return next((one for one in self._mounts() if one.name == data_set_name(_number(name))), None)

    def _holder_of(self, name: str) -> int | None:
        mount = self._mount_of(name)
        return None if mount is None else mount.holder

    def _mounts(self) -> tuple[Mount, ...]:
        """The mounts as they are, and as they may be."""
        mounts: tuple[Mount, ...] = self._ask(lambda client: client.snapshot()).mounts
        for mount in mounts:
            if mount.holder is None:
                continue
            life = mount.holder, mount.holder_epoch
            assert self._lives.setdefault((mount.name, mount.token), life) == life, f"two hold {mount}"
            assert mount.token >= self._tokens.get(mount.name, 0), f"a token went back: {mount}"
            self._tokens[mount.name] = mount.token
            assert f"node-{mount.holder}" not in self.left, f"one that has left holds {mount}"
        return mounts

    def _until(self, is_true: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _DONE_S
        while not is_true():
            if time.monotonic() > deadline:
                told = [f"node {one.node_id}: {one.words}" for one in self._ask(lambda client: client.retirements())]
                raise AssertionError(f"after {_DONE_S:g} s {otherwise}: {told}")
            time.sleep(_POLL_S)

    def _ask(self, asked: Callable[[HttpMetaClient], Awaitable[T]]) -> T:
        """Of a service that may have lost its leader a moment ago."""
        deadline = time.monotonic() + _DONE_S
        while True:
            try:
                return ask_meta(self._cluster.meta_urls, asked)
            except (Unavailable, TimeoutError) as error:
                assert time.monotonic() < deadline, error
                time.sleep(_POLL_S)

    def _data(self, name: str) -> Path:
        return self._cluster.directory.path / name


def _is_behind(step: RetireStep, other: RetireStep) -> bool:
    """The first comes after the other."""
    return _place_of(step) > _place_of(other)


def _place_of(step: RetireStep) -> int:
    return list(RetireStep).index(step)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
