"""Every control request costs what it is about: distinct things and the answer, however often it names one.

Counted are calls, bytes at the peak and bytes of the answer, never seconds. Produce and Fetch are measured where they
run, on a real connection (`tests/unit/serve/test_repeated_names.py`).
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog_node.serve.api import control_apis
from support.control_bench import ControlBench, control_bench
from support.group_node import GroupNode
from support.request_costs import answer_of, cost_of, has_arrays, request_of

CASES = [
    pytest.param(api.key, version, id=f"{api.name}-{version}")
    for api in control_apis()
    for version in range(api.min_version, api.max_version + 1)
    if has_arrays(api.key, version)
]
TOLD_ONCE = {3, 9, 10, 15, 32, 35, 42}
"""Metadata, OffsetFetch, FindCoordinator, DescribeGroups, DescribeConfigs, DescribeLogDirs, DeleteGroups: questions,
and changes that may be made again, about a thing that is named repeatedly have the one answer."""
TOLD_AS_OFTEN = {8, 13, 47}
"""OffsetCommit, LeaveGroup and OffsetDelete answer each entry, as Kafka does: with fewer bytes than it takes to ask."""
TOLD_WITH_A_SENTENCE = {30, 31}
"""CreateAcls and DeleteAcls do so with a short sentence."""
SENTENCE_BYTES = 40
MANY = 150
CALLS_PER_ENTRY = 150
BYTES_PER_ENTRY = 1_500


@pytest.fixture(scope="module", autouse=True)
def what_is_there_already_is_left_alone() -> None:
    """The collector looks at the whole heap before each count: in a long run that took three times as long as the
    counting."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def bench() -> AsyncIterator[ControlBench]:
    async with control_bench(auto_create_topics_enable=False) as control:
        node = await GroupNode().start()
        control.services = replace(control.services, groups=node.groups)
        await control.topic("orders", shards=4)
        try:
            yield control
        finally:
            await node.groups.stop()


@pytest.mark.fault("request-names-topic-partition")
@pytest.mark.parametrize(("key", "version"), CASES)
@pytest.mark.parametrize("where", ["things", "inside"])
async def test_a_thing_named_many_times_costs_little_more_than_once(key: int, version: int, where: str) -> None:
    async with bench() as control:
        once = request_of(key, version, ["orders"])
        many = request_of(
            key, version, ["orders"] * (MANY if where == "things" else 1), MANY if where == "inside" else 1
        )
        await answer_of(control, key, version, many)  # what is kept between requests is there from here on
        one = await cost_of(control, key, version, once)
        cost = await cost_of(control, key, version, many)
        allowed = 2 * cost.request_bytes if key in TOLD_AS_OFTEN else 500
        if key in TOLD_WITH_A_SENTENCE:
            allowed = SENTENCE_BYTES * MANY
        assert cost.answer_bytes <= one.answer_bytes + allowed, (one, cost)
        assert cost.calls <= one.calls + CALLS_PER_ENTRY * MANY + 2 * cost.request_bytes, (one, cost)
        assert cost.peak_bytes <= one.peak_bytes + BYTES_PER_ENTRY * MANY + 2 * cost.request_bytes, (one, cost)


@pytest.mark.fault("request-names-topic-partition")
@pytest.mark.parametrize(("key", "version"), CASES)
async def test_twice_as_many_things_cost_twice_as_much(key: int, version: int) -> None:
    async with bench() as control:
        names = [f"thing-{number:05}" for number in range(2 * MANY)]
        await answer_of(control, key, version, request_of(key, version, names))
        half = await cost_of(control, key, version, request_of(key, version, names[:MANY]))
        whole = await cost_of(control, key, version, request_of(key, version, names))
        assert whole.calls <= 2.5 * half.calls + 3_000, (half, whole)
        assert whole.peak_bytes <= 2.5 * half.peak_bytes + (1 << 17), (half, whole)
        assert whole.peak_bytes <= 30 * (whole.request_bytes + whole.answer_bytes) + (1 << 19), (half, whole)
        assert whole.answer_bytes <= 2.5 * half.answer_bytes + 500, (half, whole)


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_own_node_is_described_once_however_often_it_is_named(version: int) -> None:
    async with bench() as control:
        once = request_of(32, version, ["1"], resource_type=4)
        many = request_of(32, version, ["1"] * 1_500, resource_type=4)
        assert await answer_of(control, 32, version, many) == await answer_of(control, 32, version, once)
        one, cost = await cost_of(control, 32, version, once), await cost_of(control, 32, version, many)
        assert cost.calls <= one.calls + CALLS_PER_ENTRY * 1_500


@pytest.mark.fault("request-names-topic-partition")
@given(names=st.lists(st.sampled_from(["orders", "clicks", "never", "1"]), min_size=1, max_size=12), data=st.data())
async def test_repeating_a_question_changes_no_answer(names: list[str], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(TOLD_ONCE)))
    api = next(api for api in control_apis() if api.key == key)
    version = data.draw(st.integers(api.min_version, api.max_version))
    kind = data.draw(st.sampled_from([2, 4]))
    async with bench() as control:
        repeated = request_of(key, version, names, resource_type=kind)
        distinct = request_of(key, version, list(dict.fromkeys(names)), resource_type=kind)
        assert await answer_of(control, key, version, repeated) == await answer_of(control, key, version, distinct)
