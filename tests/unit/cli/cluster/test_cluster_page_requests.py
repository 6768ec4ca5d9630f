"""The cluster UI of `stratalog cluster start`: it works with any leader, waits for no part, and knows what runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stratalog.meta_api import wire
from stratalog.meta_api.wire import CourseList
from stratalog.model.addresses import parse_address
from stratalog.model.views.status_page import Overview, ShardSums, Tiers, TierSum
from stratalog_cli.cluster.page import ClusterPage, part_rows
from stratalog_cli.cluster.plan import Asked, first_plan
from support.cluster_ports import free_block
from support.pretended_cluster import Stage
from support.waiting import eventually


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    (tmp_path / "v1").mkdir()
    shown = ShardSums(0, 0, 0, 0, 0, 0)
    none = TierSum(0, 0)
    tiers = Tiers(none, none, none, none, 0)
    told = Overview("a-cluster", 7, 0, None, (), 0, shown, tiers, (), (), 0, (), 0, (), 0, (), 0, (), 0)
    (tmp_path / "v1" / "overview").write_bytes(wire.OVERVIEW.write(told))
    (tmp_path / "v1" / "courses").write_bytes(wire.COURSES.write(CourseList(())))
    return stage


@pytest.fixture
async def http(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    """What the page's port answers, while the cluster runs."""
    async with stage.running() as starter:
        page = ClusterPage(starter)
        url = await page.start(stage.plan.page_address)
        async with aiohttp.ClientSession(url) as session:
            yield session
        await page.close()


async def asked(http: aiohttp.ClientSession, path: str) -> tuple[int, dict[str, Any]]:
    async with http.get(path) as answer:
        return answer.status, await answer.json(content_type=None)


async def states(http: aiohttp.ClientSession) -> dict[str, tuple[str, bool]]:
    _, told = await asked(http, "/?format=json")
    return {part["name"]: (part["state"], part["leads"]) for part in told["processes"]}


async def test_it_hands_on_what_the_leading_instance_says_and_names_who_that_is(http: aiohttp.ClientSession) -> None:
    status, told = await asked(http, "/v1/overview")
    assert (status, told["cluster_id"], told["version"]) == (200, "a-cluster", 7)
    assert await asked(http, "/v1/courses?after=7") == (200, {"items": []})
    assert await states(http) == {"meta-1": ("ready", True), "node-1": ("ready", False), "node-2": ("ready", False)}
    async with http.get("/") as answer:
        assert answer.status == 200 and "script-src 'self'" in answer.headers["Content-Security-Policy"]


async def test_when_no_instance_answers_it_says_so_and_who_ended_and_how(
    stage: Stage, http: aiohttp.ClientSession
) -> None:
    pid = stage.pids()["meta-1"]
    assert pid is not None
    await asked(http, "/v1/overview")
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: stage.pids()["meta-1"] is None)
    status, problem = await asked(http, "/v1/overview")
    assert status == 503 and "no instance of the meta service leads" in problem["detail"]
    assert (await states(http))["meta-1"] == ("ended", False)


@pytest.mark.fault("views-ui-meta-service")
async def test_an_instance_that_hangs_is_given_up(stage: Stage, http: aiohttp.ClientSession) -> None:
    pid = stage.pids()["meta-1"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        status, problem = await asked(http, "/v1/overview")
        assert status == 503 and "none answers" in problem["detail"]
        assert (await states(http))["meta-1"] == ("ready", False), "it runs, as far as anybody can see from outside"
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_it_asks_for_the_token_of_the_cluster_or_it_would_be_the_way_around_it(
    stage: Stage, tmp_path: Path
) -> None:
    token = "a-token-of-this-cluster"
    (tmp_path / "token").write_text(token)
    settings = (f"auth.token.file={tmp_path / 'token'}",)
    stage.plan = first_plan(Asked(nodes=2, port_base=free_block(), settings=settings), has_etcd=False)
    stage.starter = stage.new_starter(stage.plan)
    async with stage.running() as starter:
        page = ClusterPage(starter)
        url = await page.start(stage.plan.page_address)
        shown = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(url) as without, aiohttp.ClientSession(url, headers=shown) as having:
            for path in ("/", "/topics/a/records", "/v1/overview", "/v1/courses"):
                async with without.get(path) as refused, having.get(path) as answered:
                    assert refused.status == 401 and answered.status != 401, path
        await page.close()


async def test_no_page_of_another_site_may_ask(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/overview", headers={"Origin": "http://elsewhere"}) as answer:
        assert answer.status == 403


def test_where_its_address_is_taken_the_cluster_runs_without_it(stage: Stage) -> None:
    with socket.create_server(parse_address(stage.plan.page_address)):
        process = subprocess.Popen(
            [sys.executable, "-c", stage.program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            assert not line.startswith("UI")
            if line.startswith("ready bootstrap="):
                break
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and f"no UI: the UI cannot listen on {stage.plan.page_address}" in errors


@pytest.mark.parametrize(
    "alive, ends, retired, expected",
    [
        ({"is_ready": True}, None, None, ("ready", "")),
        ({"is_ready": False}, None, None, ("starting", "")),
        (None, None, None, ("stopped", "does not run")),
        (None, {"was_asked": True, "how": "in order"}, None, ("stopped", "in order")),
        (None, {"was_asked": False, "how": "killed by SIGKILL"}, None, ("ended", "killed by SIGKILL")),
        (
            None,
            {"was_asked": False, "how": "exit code 3"},
            "is retired (volume mode)",
            ("retired", "has left permanently"),
        ),
    ],
)
def test_a_part_is_what_the_starter_knows_of_it(
    alive: dict[str, Any] | None, ends: dict[str, Any] | None, retired: str | None, expected: tuple[str, str]
) -> None:
    plan = first_plan(Asked(nodes=1), has_etcd=False)
    told = {"alive": alive, "ends": ends, "retired": retired}
    state = {what: {} if one is None else {"node-1": one} for what, one in told.items()}
    (row,) = (one for one in part_rows(plan, state, None) if one.name == "node-1")
    assert (row.state, row.words) == expected
