"""The starter of a cluster starts its parts in order, ends them in order, and leaves none behind. The parts are
fakes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.meta_api.wire import MountList, NodeList
from stratalog.model.errors import Conflict, NotFound, Unavailable
from stratalog.model.metadata import Node
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.retirement import Retirement, RetireMode, RetireStep
from stratalog_cli.cluster.child import start_child
from stratalog_cli.cluster.control import NotRunning
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.status import read_status
from support.pretended_cluster import Stage
from support.waiting import eventually, eventually_sync


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_the_meta_service_is_ready_before_the_nodes_begin_and_ends_after_them(stage: Stage) -> None:
    async with stage.running():
        assert [line.split()[0] for line in stage.said] == ["meta-1", "node-1", "node-2"]
        assert None not in stage.pids().values()
    assert stage.story[0] == "meta-1 began" and stage.story[-1] == "meta-1 ended"
    assert sorted(stage.story[1:3]) == ["node-1 began", "node-2 began"]
    assert set(stage.pids().values()) == {None}


@pytest.mark.fault("process-runs-cluster-machine")
async def test_a_start_that_fails_half_way_ends_what_it_started_and_shows_the_log(stage: Stage) -> None:
    stage.lets("node-2", "fail")
    told = r"node-2 ended before it was ready \(exit code 1\); its log [^ ]+ ends with: .*the moon is full$"  # one line
    with pytest.raises(Unavailable, match=told):
        async with stage.running():
            raise AssertionError("it did not start")
    assert set(stage.pids().values()) == {None}
    assert [line for line in stage.story if line.endswith("ended")][-1] == "meta-1 ended"


async def test_a_part_that_dies_stays_down_until_it_is_started_again(stage: Stage) -> None:
    async with stage.running():
        pid = stage.pids()["node-1"]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: stage.pids()["node-1"] is None)
        end = (await stage.asks(do="state"))["ends"]["node-1"]
        assert (end["how"], end["was_asked"]) == ("killed by SIGKILL", False)
        assert end["log_tail"] == ["stratalog ready: as it were"]
        # Behind the question whether it has left permanently.
        await eventually(lambda: any("cluster start --data" in one and "--part node-1" in one for one in stage.warned))
        await stage.asks(do="start-part", part="node-1")
        assert stage.pids()["node-1"] not in (None, pid)
        assert "node-1" not in (await stage.asks(do="state"))["ends"]


async def test_a_part_is_stopped_and_a_node_added_by_whoever_asks(stage: Stage) -> None:
    async with stage.running():
        await stage.asks(do="stop-part", part="node-2")
        assert stage.said[-1] == "node-2 ended (in order)"
        assert (await stage.asks(do="state"))["ends"]["node-2"]["was_asked"]
        with pytest.raises(Conflict, match="node-1 runs already"):
            await stage.asks(do="start-part", part="node-1")
        with pytest.raises(NotFound, match="no part 'x'"):
            await stage.asks(do="stop-part", part="x")
        told = await stage.asks(do="add-node")
        assert told["bootstrap"].count(",") == 2 and stage.pids()["node-3"] is not None
    again = ClusterDirectory(stage.directory.path).read()[0]
    assert [part.name for part in again.parts] == ["meta-1", "node-1", "node-2", "node-3"]


def retired(node_id: int, mode: RetireMode, step: RetireStep = RetireStep.DONE) -> Node:
    return Node(
        node_id, f"disk-{node_id}", "localhost", 9092, retirement=Retirement(f"disk-{node_id}", mode, step, 1, 1)
    )


def mounted(node_id: int, mode: MountMode, holder: int) -> Mount:
    return Mount(f"tier/{node_id}", mode, node_id, f"disk-{node_id}", MountState.SERVING, 1, 1, holder=holder)


@pytest.mark.fault("stops-restarts-cluster-machine")
async def test_nodes_that_have_left_are_passed_over_with_a_line_that_says_who_has_their_data(stage: Stage) -> None:
    for _ in range(2):
        stage.plan, _ = stage.plan.with_one_more_node()
    for number, what in ((1, "fail"), (2, "fail")):  # as a real one does, which is refused
        stage.lets(f"node-{number}", what)
        (stage.directory.path / f"node-{number}").mkdir(parents=True)
    stage.answers(
        NodeList(
            (
                retired(1, RetireMode.OFFLOAD),
                retired(2, RetireMode.VOLUME, RetireStep.MOUNT),
                retired(3, RetireMode.OFFLOAD, RetireStep.VERIFY),
                Node(4, "disk-4", "localhost", 9092),
            )
        ),
        MountList((mounted(1, MountMode.OFFLOAD, 4), mounted(2, MountMode.VOLUME, 3))),
    )
    stage.starter = stage.new_starter(stage.plan)
    async with stage.running() as starter:
        assert [line for line in stage.said if "skipped" in line] == [
            "node-1  is retired (offload mode), its data is mounted by node 4: skipped",
            "node-2  is retired (volume mode), its data is mounted by node 3, which `stratalog node start "
            "--read-only` lets read its directory: skipped",
        ]
        assert {name for name, pid in stage.pids().items() if pid is not None} == {"meta-1", "node-3", "node-4"}
        assert starter.bootstrap == ",".join(stage.plan.part(f"node-{n}").main_address for n in (3, 4))
        admin = ",".join(stage.plan.part(f"node-{n}").addresses["admin"] for n in (3, 4))
        assert starter.context_options.startswith(f"--admin {admin} --bootstrap {starter.bootstrap} --meta ")
        with pytest.raises(Unavailable, match="the moon is full"):  # asked for by name it says itself why not
            await stage.asks(do="start-part", part="node-1")


@pytest.mark.fault("stops-restarts-cluster-machine")
async def test_a_node_that_ends_because_it_has_left_is_not_told_as_one_to_start_again(stage: Stage) -> None:
    stage.answers(NodeList((retired(1, RetireMode.OFFLOAD),)), MountList(()))
    async with stage.running():
        os.kill(stage.pids()["node-1"] or 0, signal.SIGKILL)
        await eventually(lambda: any("node-1" in line for line in stage.warned))
        (line,) = [line for line in stage.warned if "node-1" in line]
        assert line.endswith("it is retired (offload mode), its data is no longer mounted")
        state = await asyncio.to_thread(read_status, stage.directory)
        (found,) = [part for part in state.parts if part.name == "node-1"]
        assert (found.state, found.words) == ("retired", "is retired (offload mode), its data is no longer mounted")


async def test_a_node_that_ends_before_its_data_is_mounted_is_not_told_as_one_whose_mount_ended(stage: Stage) -> None:
    stage.answers(NodeList((retired(1, RetireMode.OFFLOAD, RetireStep.RELEASE),)), MountList(()))
    async with stage.running():
        os.kill(stage.pids()["node-1"] or 0, signal.SIGKILL)
        await eventually(lambda: any("node-1" in line for line in stage.warned))
        (line,) = [line for line in stage.warned if "node-1" in line]
        assert line.endswith("it is retired (offload mode), another node takes over its data")


async def test_a_stop_from_elsewhere_returns_when_all_have_ended(stage: Stage) -> None:
    async with stage.running() as starter:
        asking = asyncio.create_task(stage.asks(do="stop"))
        await starter.stopping.wait()
        await starter.stop_all()
        await asking
        assert set(stage.pids().values()) == {None}
        assert stage.said[-1] == "meta-1 ended (in order)"
    with pytest.raises(NotRunning):
        await stage.asks(do="state")


@pytest.mark.fault("process-runs-cluster-machine")
async def test_a_part_that_does_not_hear_is_killed_after_a_second_stop_request(stage: Stage) -> None:
    stage.lets("node-1", "deaf")
    async with stage.running() as starter:
        starter.hurry.set()
    assert any("node-1 is killed" in line for line in stage.warned)
    assert set(stage.pids().values()) == {None}


async def test_how_a_part_ended_is_known_though_it_is_signalled_once_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_be_seen, wait = threading.Event(), os.waitpid

    def wait_late(pid: int, options: int) -> tuple[int, int]:
        may_be_seen.wait(30)
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", wait_late)
    await stage.directory.hold()
    part = stage.plan.part("node-1")
    child = await start_child(part, ["sleep", "600"], os.environ, stage.directory)
    child.ask_to_end()
    stat = Path(f"/proc/{child.pid}/stat")
    await eventually(lambda: ") Z " in stat.read_text(encoding="ascii"))
    child.ask_to_end()
    may_be_seen.set()
    assert (await child.ended()).words == "in order"
    stage.directory.release()


@pytest.mark.fault("process-runs-cluster-machine")
async def test_a_part_that_was_paused_ends_with_the_others(stage: Stage) -> None:
    async with stage.running():
        os.kill(stage.pids()["node-1"] or 0, signal.SIGSTOP)
    assert "node-1 ended" in stage.story


async def test_a_stop_while_a_part_starts_ends_the_start(stage: Stage) -> None:
    stage.lets("node-1", "hang")
    stop = asyncio.get_running_loop().create_task(eventually(lambda: "node-1 began" in stage.story))
    stop.add_done_callback(lambda _: stage.starter.stopping.set())
    with pytest.raises(Unavailable, match="the start was ended before node-1 was ready"):
        async with stage.running():
            raise AssertionError("it did not start")
    assert "meta-1 ended" in stage.story


@pytest.mark.fault("process-runs-cluster-machine")
async def test_an_address_that_is_taken_is_named_before_anything_is_made(stage: Stage) -> None:
    address = stage.plan.part("node-2").addresses["admin"]
    with (
        socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))),
        pytest.raises(Unavailable, match=rf"{address} for admin of node-2 .*or choose .*--port-base"),
    ):
        async with stage.running():
            raise AssertionError("it did not start")
    assert stage.story == [] and not stage.directory.exists


async def test_a_directory_is_held_by_one_and_as_long_as_a_part_of_it_lives(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_cli.cluster.directory._LOCK_WAIT_S", 0.1)
    second = ClusterDirectory(stage.directory.path)
    async with stage.running():
        with pytest.raises(Conflict, match="parts of an earlier run"):
            await second.hold()
        second.release()
    await second.hold()
    second.release()


async def test_a_socket_is_reached_however_long_the_directory_is_called(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.directory = ClusterDirectory(tmp_path / ("long" * 30) / "cluster")
    stage.starter = stage.new_starter(replace(stage.plan, parts=stage.plan.parts[:1]))
    async with stage.running():
        assert "meta-1" in (await stage.asks(do="state"))["alive"]


@pytest.mark.fault("process-runs-cluster-machine")
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own promise")
def test_when_the_one_who_runs_it_is_killed_nobody_is_left(stage: Stage) -> None:
    process = subprocess.Popen([sys.executable, "-c", stage.program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(6)]
        assert lines[-1].startswith("ready bootstrap=127.0.0.1:"), lines
        page = json.loads((stage.directory.path / "cluster.json").read_text())["page"]
        assert lines[-2] == f"UI  {page}\n" and page == f"http://{stage.plan.page_address}/"
        assert lines[-3] == f"commands  stratalog context add NAME {stage.plan.context_options()}\n"
        assert f"--bootstrap {stage.plan.bootstrap} --meta http://" in lines[-3]
        pids = [pid for pid in stage.pids().values() if pid is not None]
        assert len(pids) == 3 and all(os.path.exists(f"/proc/{pid}") for pid in pids)
    finally:
        process.kill()
        process.communicate()
    eventually_sync(lambda: not any(_lives(pid) for pid in pids))
    assert not [line for line in stage.story if line.endswith("ended")], "they are killed, not told"


def _lives(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
