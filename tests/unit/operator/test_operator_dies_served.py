"""Operators as processes that are killed and frozen: the cluster reaches its spec, and two operators never write."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from stratalog_operator.kube.client import path_of
from stratalog_operator.lease import DEFAULT_TIMES
from stratalog_operator.resources.kinds import CLUSTER, POOL, TOPIC
from support.api_server import NO_API_SERVER, ApiServer, apiserver_binary
from support.operator_place import QUICK_LEASE, Place, operator_place
from support.operator_process import OperatorProcess

pytestmark = [
    pytest.mark.real_apiserver,
    pytest.mark.skipif(apiserver_binary() is None, reason=NO_API_SERVER),
    pytest.mark.timeout(1800),
]
_NUMBERS = count()


@pytest.fixture
async def place(api: ApiServer) -> AsyncIterator[Place]:
    async with operator_place(api, f"dies-{next(_NUMBERS)}") as made:
        yield made


def _make(place: Place) -> None:
    place.make(CLUSTER)
    place.make(POOL, {"spec.zones": []})
    place.make(TOPIC, {"metadata.name": "orders", "spec": {"clusterRef": "main", "topicName": "orders"}})


async def _live_on(place: Place, folder: Path, writes: int, until: str, *, is_answer_lost: bool) -> int:
    """Runs operators that die after a number of writes, one after the other, until one has nothing left to write.
    Returns their number."""
    for number in range(200):
        one = OperatorProcess(place, folder, f"life-{next(_NUMBERS)}", DEFAULT_TIMES)
        one.start(dies_after=writes, is_answer_lost=is_answer_lost)
        await place.until(lambda one=one: one.code is not None or ("leads" in one.log() and _is_there(place, until)))
        if one.code is None:
            one.send(signal.SIGTERM)
            assert await asyncio.to_thread(one.wait) in (0, -signal.SIGKILL), one.log()[-4_000:]
            return number + 1
        assert one.code == -signal.SIGKILL, one.log()[-4_000:]
        # Deletes the Lease, so that the next operator need not wait for a holder that the test has killed.
        place.api.ask("DELETE", path_of("Lease", place.namespace, "stratalog-operator"))
    raise AssertionError("it does not come to an end")


def _is_there(place: Place, until: str) -> bool:
    """`up-3`: three nodes serve, none leaves, and the topic exists."""
    wanted = int(until.removeprefix("up-"))
    counts = place.get("StorageCluster", "main").get("status", {}).get("nodes", {})
    is_up = place.condition("Ready") == "True" and counts == {"desired": wanted, "ready": wanted, "retiring": 0}
    return (
        is_up
        and place.condition("Ready", "TopicStorage", "orders") == "True"
        and len(place.names("PersistentVolumeClaim")) == wanted
    )


@pytest.mark.fault("operator-killed-request-answer")
@pytest.mark.parametrize(
    ("writes", "is_answer_lost"),
    [
        (25, True),
        # One write in three is an operator's last; every fourth of these is never sent.
        pytest.param(3, True, marks=pytest.mark.slow),
        pytest.param(4, False, marks=pytest.mark.slow),
    ],
)
async def test_killed_again_and_again_it_ends_where_the_spec_says(
    place: Place, tmp_path: Path, writes: int, is_answer_lost: bool
) -> None:
    _make(place)
    lives = await _live_on(place, tmp_path, writes, "up-3", is_answer_lost=is_answer_lost)
    place.scale(4)
    lives += await _live_on(place, tmp_path, writes, "up-4", is_answer_lost=is_answer_lost)
    place.scale(3)
    lives += await _live_on(place, tmp_path, writes, "up-3", is_answer_lost=is_answer_lost)
    names = [topic.name for topic in (await place.members.service.snapshot()).topics if not topic.is_internal]

    assert lives > 4, "hardly anybody died: the test proves nothing"
    assert place.names("StorageNode") == ["main-hot-1", "main-hot-2", "main-hot-3"]
    assert [one["nodeId"] for one in place.get("StorageCluster", "main")["status"]["retiredNodes"]] == [4]
    assert names == ["orders"]
    assert place.names("PersistentVolumeClaim") == [f"data-main-hot-{number}" for number in (1, 2, 3)]


@pytest.mark.fault("active-replica-killed")
async def test_a_leader_that_is_killed_is_followed_by_the_other_replica(place: Place, tmp_path: Path) -> None:
    _make(place)
    first = OperatorProcess(place, tmp_path, "first", QUICK_LEASE).start()
    await place.until(lambda: _is_there(place, "up-3"))
    second = OperatorProcess(place, tmp_path, "second", QUICK_LEASE).start()
    await place.until(lambda: "leads" not in second.log() and second.code is None)
    first.send(signal.SIGKILL)
    place.scale(4)
    await place.until(lambda: _is_there(place, "up-4"))
    second.send(signal.SIGTERM)

    assert await asyncio.to_thread(second.wait) == 0, second.log()[-4_000:]
    assert second.writes()


@pytest.mark.fault("active-replica-frozen-takes")
async def test_a_leader_that_was_frozen_writes_nothing_after_another_took_over_and_ends_at_once(
    place: Place, tmp_path: Path
) -> None:
    _make(place)
    first = OperatorProcess(place, tmp_path, "first", QUICK_LEASE).start()
    await place.until(lambda: _is_there(place, "up-3"))
    second = OperatorProcess(place, tmp_path, "second", QUICK_LEASE).start()
    place.scale(4)
    first.send(signal.SIGSTOP)
    await place.until(lambda: _is_there(place, "up-4") and bool(second.writes()))
    place.scale(3)
    first.send(signal.SIGCONT)
    await place.until(lambda: first.code is not None)
    await place.until(lambda: _is_there(place, "up-3"))
    second.send(signal.SIGTERM)
    assert await asyncio.to_thread(second.wait) == 0, second.log()[-4_000:]

    taken_over = second.writes()[0][0]
    late = [what for at, what in first.writes() if at > taken_over]
    assert first.code == 1, first.log()[-4_000:]
    assert late == []
