"""Whatever is committed, deleted and killed in whatever order: what was acknowledged is what a restart reads."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stratalog.model.errors import OutcomeUnknown, Unavailable
from stratalog.model.groups.group import GroupError
from stratalog_node.groups.coordinator import CoordinatorLimits
from stratalog_node.groups.log import LogLimits
from support.group_node import GroupNode, committing, task

GROUPS = ("a", "b", "c")
LIMITS = CoordinatorLimits(log=LogLimits(snapshot_min_bytes=1_500, chunk_entries=1, append_bytes=300, read_bytes=200))

group_ids = st.sampled_from(GROUPS)
commits = st.tuples(st.just("commit"), group_ids, st.integers(0, 3), st.integers(0, 10**9))
steps = st.lists(
    st.one_of(
        commits,
        commits,
        commits,
        st.tuples(st.just("delete"), group_ids),
        st.tuples(st.just("kill")),
        st.tuples(st.just("refuse")),
        st.tuples(st.just("doubt")),
        st.tuples(st.just("burst"), st.lists(commits, min_size=2, max_size=8)),
    ),
    max_size=60,
)


class Model:
    """What may be read: for each offset the acknowledged value, or any value of an unknown outcome since."""

    def __init__(self) -> None:
        self.may: dict[tuple[str, int], set[int | None]] = {}

    def acknowledged(self, group_id: str, shard: int, offset: int) -> None:
        self.may[(group_id, shard)] = {offset}

    def doubtful(self, group_id: str, shard: int, offset: int) -> None:
        self.may.setdefault((group_id, shard), {None}).add(offset)

    def deleted(self, group_id: str, *, is_sure: bool) -> None:
        for key, values in self.may.items():
            if key[0] == group_id:
                self.may[key] = {None} if is_sure else values | {None}


async def commit(node: GroupNode, model: Model, group_id: str, shard: int, offset: int) -> None:
    errors = await node.groups.commit_offsets(committing(group_id, ("orders", shard, offset)))
    if errors == [GroupError.NONE]:
        model.acknowledged(group_id, shard, offset)
    elif errors != [
        GroupError.COORDINATOR_LOAD_IN_PROGRESS
    ]:  # after a failed deletion the group is first written again
        assert errors == [GroupError.COORDINATOR_NOT_AVAILABLE]
        model.doubtful(group_id, shard, offset)


async def play(script: list[Any]) -> None:
    node = await GroupNode(limits=LIMITS, offsets_topic_num_partitions=1).start()
    model = Model()
    for step in script:
        match step:
            case ("commit", group_id, shard, offset):
                await commit(node, model, group_id, shard, offset)
            case ("burst", many):
                await asyncio.gather(*(task(commit(node, model, *one[1:])) for one in many))
            case ("delete", group_id):
                (error,) = await node.groups.delete_groups([group_id])
                model.deleted(group_id, is_sure=error is GroupError.NONE)
            case ("kill",):
                await node.kill()
                await check(node, model)
            case ("refuse",):
                node.shard_of("a").fail(Unavailable("too few replicas: wait"))
            case ("doubt",):
                node.shard_of("a").fail(OutcomeUnknown("lost: read again"))
    await check(node, model)
    node.shard_of("a")._failures.clear()
    await node.kill()
    await check(node, model)
    assert node.groups.stats.incomplete_loads == 0
    await node.groups.stop()


async def check(node: GroupNode, model: Model) -> None:
    hosted = list(node.groups._hosting.hosted())
    if not node.groups._hosting.is_loading:
        held = sum(group.machine.size_bytes + group.offset_bytes for group in hosted)
        assert node.groups.stats.held_bytes == held, "what groups hold is miscounted"
    for group_id in GROUPS:
        fetched = await node.groups.fetch_offsets(group_id, None)
        if fetched.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            continue  # the failure of the script hit the load: it is tried again
        found = {place.shard: place.committed.offset for place in fetched.offsets if place.committed}
        for shard in range(4):
            allowed = model.may.get((group_id, shard), {None})
            assert found.get(shard) in allowed, f"{group_id}/{shard} is {found.get(shard)}, may be {allowed}"


@given(steps)
@example([("commit", "a", 0, 0), ("refuse",), ("delete", "a"), ("commit", "a", 0, 1)])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_acknowledged_is_what_a_restart_reads(script: list[Any]) -> None:
    asyncio.run(play(script))
