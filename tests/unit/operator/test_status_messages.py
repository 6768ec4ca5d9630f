"""What statuses say, and that they are written again only when they say something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.model.retirement import Retirement, RetireMode, RetireStep, Wait, WaitReason
from stratalog_operator.plan import actions as act
from stratalog_operator.plan.observed import Observed, SeenMeta
from stratalog_operator.plan.pools import leaving_first
from stratalog_operator.plan.scope import staying
from stratalog_operator.plan.whole import plan
from stratalog_operator.resources.steady import is_steady, steady
from support.operator_world import World, kinds_of, world


def _settled(replicas: int = 3) -> World:
    one = world(replicas)
    one.settle()
    one.done.clear()
    return one


def _condition(seen: Observed, type_: str) -> tuple[str, str, str]:
    status = plan(seen).statuses.get(("StorageCluster", "main"), seen.cluster.status)
    (found,) = [one for one in status.conditions if one.type == type_]  # type: ignore[attr-defined]
    return found.status, found.reason, found.message


def test_a_node_that_leaves_is_not_counted_as_ready_in_the_place_of_one_that_stays() -> None:
    one = _settled(4)
    one.blocked = WaitReason.REPLICATION_FACTOR
    one.scale(3)
    for _ in range(4):
        one.turn()
    one.pods["main-hot-1-0"] = replace(one.pods["main-hot-1-0"], is_ready=False)
    seen = one.observe()

    assert [node.name for node in seen.nodes if node.spec.retire] == ["main-hot-4"]
    assert _condition(seen, "Ready")[:2] == ("False", "NotAllServe")
    assert "2 of 3" in _condition(seen, "Ready")[2]


def _with_meta(one: World, **changes: object) -> Observed:
    seen = one.observe()
    assert seen.meta is not None
    meta: SeenMeta = replace(seen.meta, **changes)  # type: ignore[arg-type]
    return replace(seen, meta=meta)


def test_what_is_under_replicated_is_not_healthy_and_takes_writes_all_the_same() -> None:
    one = _settled()
    thin = tuple(f"shard {number} of orders: 2 of 3 replicas in sync" for number in range(5))
    seen = _with_meta(one, thin=thin, thin_count=1_205)

    assert _condition(seen, "Healthy")[:2] == ("False", "UnderReplicated")
    assert _condition(seen, "Healthy")[2].endswith("; and 1,202 more")
    assert _condition(seen, "Ready")[0] == "True"


def test_the_scaler_of_a_pool_counts_its_nodes_and_not_the_readers_of_retired_volumes() -> None:
    one = _settled()

    assert (
        one.pools["hot"].status.selector == "stratalog.dev/cluster=main,stratalog.dev/part=node,stratalog.dev/pool=hot"
    )


@pytest.mark.fault("pool-scaled-meta-service")
def test_while_the_meta_service_is_silent_a_node_whose_pod_is_down_leaves_before_one_that_serves() -> None:
    one = _settled()
    one.pods["main-hot-2-0"] = replace(one.pods["main-hot-2-0"], is_ready=False)
    seen = one.observe(is_meta_away=True)
    (pool,) = seen.pools

    assert [node.spec.node_id for node in leaving_first(seen, pool, staying(seen, pool))] == [2, 3, 1]


@pytest.mark.fault("retires-node-stratalog-nodes")
def test_a_retirement_that_a_person_began_by_a_command_is_followed_and_not_cancelled() -> None:
    """`stratalog nodes retire 2 --force …` is for the case in which the operator does not help."""
    one = _settled()
    disk = one.members[2].storage_id
    one.needed.clear()
    one.records[2] = Retirement(disk, RetireMode.OFFLOAD, RetireStep.PREFLIGHT, 0, 0)
    one.settle()

    assert "CancelRetire" not in kinds_of(one.done)
    assert [tomb.node_id for tomb in one.cluster.status.retired_nodes] == [2]
    assert one.node_ids() == [1, 3, 4], "the pool has as many nodes as it asks for"


@pytest.mark.fault("retires-node-stratalog-nodes")
@pytest.mark.parametrize("writes", range(14))
def test_a_wish_that_is_taken_back_is_cancelled_wherever_the_operator_was_killed(writes: int) -> None:
    one = _settled()
    one.blocked = WaitReason.REPLICATION_FACTOR
    one.wish_to_retire("main-hot-2")
    one.dies_after = one.writes + writes
    for _ in range(12):
        if one.dies_after is None:
            break
        one.turn()
    one.dies_after = None
    one.users_wishes.discard("main-hot-2")
    node = one.nodes["main-hot-2"]
    one.nodes["main-hot-2"] = replace(node, spec=node.spec.model_copy(update={"retire": False}))
    one.blocked = None
    one.pools["hot"] = replace(one.pools["hot"])
    one.reconcile()

    assert 2 not in one.records, "it stays"


def test_a_retirement_that_waits_is_not_written_about_as_time_passes() -> None:
    one = _settled()
    one.wish_to_retire("main-hot-2")
    one.scale(2)
    for _ in range(12):
        one.turn()
    seen = one.observe()
    assert seen.meta is not None

    def after(seconds: int) -> Observed:
        words = f"the object store has not answered for {seconds} s; still to be uploaded: 2 segments, 1 MiB"
        records = tuple(
            replace(
                record,
                bytes_per_second=0,
                retirement=replace(
                    record.retirement,
                    step=RetireStep.OFFLOAD,
                    wait=Wait(WaitReason.STORE_UNREACHABLE, words, 0),
                ),
                words=f"waits (StoreUnreachable): {words}",
            )
            for record in seen.meta.retirements  # type: ignore[union-attr]
        )
        return replace(seen, meta=replace(seen.meta, retirements=records))  # type: ignore[arg-type]

    if not seen.meta.retirements:
        pytest.fail("nobody leaves: the test shows nothing")
    written = plan(after(20)).statuses
    nodes = tuple(replace(node, status=written.get(("StorageNode", node.name), node.status)) for node in seen.nodes)
    later = replace(after(35), nodes=nodes)

    assert ("StorageNode", "main-hot-2") in written
    assert ("StorageNode", "main-hot-2") not in plan(later).statuses
    assert ("StorageNode", "main-hot-2") in plan(replace(after(45), nodes=nodes)).statuses, "twice as long is news"


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ("no answer for 10 s", "no answer for 15 s", True),
        ("no answer for 10 s", "no answer for 20 s", False),
        ("no answer for 10 s", "no answer for 4 s", False),
        ("no answer for 10 s", "no reply for 10 s", False),
        ("2 segments, for 10 s", "3 segments, for 11 s", False),
        ("at 1.5 MiB/s, 40 s left", "at 1.6 MiB/s, 38 s left", True),
        ("1,200 s", "1,300 s", True),
    ],
)
def test_words_in_which_only_a_little_time_has_passed_stay(before: str, now: str, kept: bool) -> None:
    assert (steady(before, now) == before) is kept


def test_a_number_that_began_or_ended_is_not_steady() -> None:
    assert not is_steady(0, 5) and not is_steady(5, 0) and is_steady(0, 0)


def test_nobody_is_asked_to_leave_before_it_is_noted() -> None:
    one = _settled()
    one.wish_to_retire("main-hot-2")
    one.scale(2)
    first = one.reconcile()

    assert not [action for action in first if isinstance(action, act.AskRetire)]
    assert one.nodes["main-hot-2"].status.retirement is not None


@pytest.mark.fault("hundreds-nodes-leave-cluster")
def test_messages_fit_however_many_nodes_leave_and_whatever_the_service_says() -> None:
    """500 nodes that left at once made a message of 10,000 characters: no pass got beyond it."""
    one = _settled()
    seen = _with_meta(one, unwell=("x" * 10_000,))
    first = seen.nodes[0]
    many = tuple(
        replace(
            first,
            name=f"main-hot-{node_id}",
            spec=first.spec.model_copy(update={"node_id": node_id, "retire": True}),
        )
        for node_id in range(10, 510)
    )
    seen = replace(seen, nodes=(*seen.nodes, *many))

    assert len(_condition(seen, "Ready")[2]) == 4096
    status, _, message = _condition(seen, "ScalingIn")
    assert status == "True" and message.endswith("; and 497 more")


def test_a_node_that_the_meta_service_does_not_count_as_alive_is_not_counted_as_ready() -> None:
    """Its pod is ready, and no lease of it arrives: pool and cluster said `3 of 3`, and the node `NotRegistered`."""
    one = _settled(3)
    one.members[2] = replace(one.members[2], is_alive=False)
    one.reconcile()
    found = [
        one.condition(kind, name, "Ready") for kind, name in (("StorageCluster", "main"), ("StorageNodePool", "hot"))
    ]

    assert [(told.status, told.reason) for told in found] == [("False", "NotAllServe")] * 2
    assert [told.message for told in found] == ["2 of 3 storage nodes serve", "2 of 3 nodes ready"]
    assert one.pools["hot"].status.ready_replicas == one.cluster.status.nodes.ready == 2


def test_a_node_that_left_by_a_command_does_not_say_that_a_wish_was_taken_back() -> None:
    one = _settled(4)
    one.records[4] = Retirement(one.members[4].storage_id, RetireMode.OFFLOAD, RetireStep.PREFLIGHT, 0, 0)
    told = set()
    while "main-hot-4" in one.nodes:
        one.turn()
        if "main-hot-4" in one.nodes:
            found = one.condition("StorageNode", "main-hot-4", "Retired")
            told.add((found.status, found.reason))

    assert told == {("False", "Stays"), ("True", "Released")}
