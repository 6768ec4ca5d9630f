"""What the operator asks of real members of etcd, and the files with which they start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from stratalog.model.errors import Unavailable
from stratalog_operator.etcd_members import EtcdMembers
from stratalog_operator.plan.observed import SeenEtcd, SeenEtcdMember
from stratalog_operator.resources.cluster import StorageClusterSpec
from stratalog_operator.specs.etcd import Formation, etcd_config_map, peer_url
from stratalog_operator.specs.objects import Cluster
from support.cluster_ports import free_port
from support.etcd_server import NO_ETCD, etcd_binary
from support.waiting import eventually

pytestmark = pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD)

CLUSTER = Cluster("main", "data", "uid", StorageClusterSpec.model_validate({"meta": {"etcd": {}}}))


class Members:
    """Three pods, with loopback in the place of their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [(free_port(), free_port()) for _ in range(3)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.formation = Formation()

    def urls(self) -> dict[int, tuple[str, str]]:
        return {
            number: (f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}")
            for number, (client, peer) in enumerate(self._ports)
        }

    def start(self, number: int) -> subprocess.Popen[bytes]:
        assert CLUSTER.spec.meta.etcd is not None
        files = etcd_config_map(CLUSTER, CLUSTER.spec.meta.etcd, self.formation)["data"]
        assert isinstance(files, dict)
        text = str(files[f"main-etcd-{number}.yaml"])
        for other, (_, peer) in self.urls().items():
            text = text.replace(peer_url(CLUSTER, other), peer)
        client, peer = self.urls()[number]
        local = {
            "data-dir": str(self.volume(number)),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "unsafe-no-fsync": True,
            "log-level": "error",
        }
        file = self._folder / f"main-etcd-{number}.yaml"
        file.write_text(json.dumps({**json.loads(text), **local}))
        with (self._folder / f"{number}.log").open("ab") as log:
            process = subprocess.Popen([str(etcd_binary()), f"--config-file={file}"], stdout=log, stderr=log)
        self._processes[number] = process
        return process

    def volume(self, number: int) -> Path:
        return self._folder / f"volume-{number}"

    def lose_volume(self, number: int) -> None:
        self.kill(number)
        self.volume(number).rename(self._folder / "lost")

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def log(self, number: int) -> str:
        return (self._folder / f"{number}.log").read_text(errors="replace")

    def stop(self) -> None:
        for number in list(self._processes):
            self.kill(number)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    made = Members(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def _of(seen: SeenEtcd, number: int) -> SeenEtcdMember:
    found = seen.member(number)
    assert found is not None
    return found


@pytest.mark.fault("member-etcd-kubernetes-loses")
async def test_a_member_that_lost_its_volume_joins_again_under_a_new_id(members: Members) -> None:
    etcd = EtcdMembers(members.urls)
    seen: list[SeenEtcd] = []

    async def sees(number: int, **wanted: bool) -> bool:
        try:
            seen.append(await etcd.observe())
        except Unavailable:
            return False
        found = seen[-1].member(number)
        return found is not None and all(getattr(found, key) == value for key, value in wanted.items())

    for number in range(3):
        members.start(number)
    for number in range(3):
        await eventually(
            lambda number=number: sees(number, is_healthy=True, is_started=True, is_learner=False), timeout=30
        )
    before = _of(seen[-1], 1)

    members.formation = Formation(is_formed=True)
    members.lose_volume(1)
    refused = members.start(1)
    assert refused.wait(30) != 0, "on an empty volume it may not start under its id"
    assert "couldn't find local name" in members.log(1)
    await eventually(lambda: sees(1, is_healthy=False), timeout=30)
    for _ in range(2):
        await etcd.remove(before.member_id)

    async def is_done(change: Awaitable[None]) -> bool:
        try:
            await change
        except Unavailable:  # the others have not been together for long enough; or it has not caught up
            return False
        return True

    for _ in range(2):
        await eventually(lambda: is_done(etcd.add(members.urls()[1][1])), timeout=30)
    listed = await etcd.observe()
    added = _of(listed, 1)
    assert (added.is_started, added.is_learner, added.is_healthy) == (False, True, False)
    assert added.member_id != before.member_id and len(listed.members) == 3

    members.formation = Formation(is_formed=True, joining={1: (0, 1, 2)})
    members.start(1)
    await eventually(lambda: sees(1, is_healthy=True, is_started=True, is_learner=True), timeout=30)

    await eventually(lambda: is_done(etcd.promote(added.member_id)), timeout=30)
    await etcd.promote(added.member_id)
    await eventually(lambda: sees(1, is_healthy=True, is_learner=False), timeout=30)

    members.formation = Formation(is_formed=True)
    members.kill(1)
    members.start(1)
    await eventually(lambda: sees(1, is_healthy=True), timeout=30)
    assert _of(seen[-1], 1).member_id == added.member_id, "with its log it starts as ever"


async def test_without_a_majority_nothing_is_known_of_the_members(members: Members) -> None:
    etcd = EtcdMembers(members.urls)
    for number in range(3):
        members.start(number)

    async def answers() -> bool:
        try:
            return all(one.is_healthy for one in (await etcd.observe()).members)
        except Unavailable:
            return False

    await eventually(answers, timeout=30)
    members.kill(0)
    members.kill(1)

    with pytest.raises(Unavailable):
        await etcd.observe()


@pytest.mark.fault("etcd-member-over-removed-log")
async def test_a_member_starts_on_an_empty_volume_and_not_over_the_log_of_a_removed_member(members: Members) -> None:
    """Over that log it ends at each start, and the other members serve as before."""
    etcd = EtcdMembers(members.urls)
    for number in range(3):
        members.start(number)

    async def serve(*numbers: int) -> bool:
        try:
            seen = await etcd.observe()
        except Unavailable:
            return False
        return all((one := seen.member(number)) is not None and one.is_healthy for number in numbers)

    async def is_done(change: Awaitable[None]) -> bool:
        try:
            await change
        except Unavailable:
            return False
        return True

    await eventually(lambda: serve(0, 1, 2), timeout=30)
    removed = _of(await etcd.observe(), 1)
    members.kill(1)
    await eventually(lambda: is_done(etcd.remove(removed.member_id)), timeout=30)
    await eventually(lambda: is_done(etcd.add(members.urls()[1][1])), timeout=30)
    members.formation = Formation(is_formed=True, joining={1: (0, 1, 2)})
    members.start(1).wait(30)
    listed = _of(await etcd.observe(), 1)
    assert listed.member_id != removed.member_id
    assert (listed.is_started, listed.is_healthy) == (False, False)
    assert await serve(0, 2)

    members.volume(1).rename(members.volume(3))
    members.start(1)
    await eventually(lambda: serve(0, 1, 2), timeout=30)
    await eventually(lambda: is_done(etcd.promote(listed.member_id)), timeout=30)
