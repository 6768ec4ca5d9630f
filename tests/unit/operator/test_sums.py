"""What a snapshot of the metadata comes to: bytes by tier, what is not sent, how long the store is away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from stratalog.model.activity import UploadActivity
from stratalog.model.mounts import Mount, MountMode, MountState
from stratalog.model.topic import Topic
from stratalog.model.views import outline
from stratalog.model.views.outline import Outline, ShardHealth, TopicTrouble
from stratalog.model.views.status_page import NodeRow, Overview, ShardSums, Tiers, TierSum, TroubleCount, TroubledShard
from stratalog_operator.observe.meta_service import seen_meta, store_away_seconds
from stratalog_operator.plan.observed import MountSums, NodeSums, TopicSums

TOPIC = UUID(int=7)


def _overview(*away_ms: int | None, state: str = "alive") -> Overview:
    none = TierSum(0, 0)
    rows = tuple(
        NodeRow(
            number, state, "host:1", None, 0, 0, 0, 25, 100, True,
            None if ms is None else UploadActivity(store_away_ms=ms), (), 0, "",
        )
        for number, ms in enumerate(away_ms)
    )  # fmt: skip
    nothing: Any = ()
    return Overview(
        cluster_id="c", version=1, now_ms=0, why_no_changes=None, nodes=rows, more_nodes=0,
        shards=ShardSums(0, 0, 0, 0, 0, 0), tiers=Tiers(none, none, none, none, 0), trouble_kinds=nothing,
        troubles=nothing, more_troubles=0, stopped=nothing, more_stopped=0, retirements=nothing, more_retirements=0,
        mounts=nothing, more_mounts=0, faults=nothing, more_faults=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("away_ms", "told"),
    [
        ((), None),
        ((None, None), None),
        ((0, 0), 0),
        ((0, 4_900), 0),
        ((0, 5_000), 5),
        ((12_000, 38_000), 38),
    ],
)
def test_how_long_the_store_is_away_is_reported_and_a_hiccup_is_not(
    away_ms: tuple[int | None, ...], told: int | None
) -> None:
    assert store_away_seconds(_overview(*away_ms)) == told


def test_a_node_that_is_not_alive_says_nothing_of_the_store() -> None:
    assert store_away_seconds(_overview(60_000, state="not alive")) is None


def test_what_is_summed_up_is_found_by_topic_node_and_mount() -> None:
    topic = Topic("orders", TOPIC, 1, 2, {}, 0)
    health = ShardHealth(("shard 0 of orders: no leader",), 1, (TopicTrouble("orders", "shard 0: no leader"),), ())
    summed = outline.Sums(
        (outline.TopicSums(TOPIC, 200, 137, 70, 10),),
        (outline.NodeSums(1, 2, 1), outline.NodeSums(9, 3, 0)),
        (outline.MountSums("tier/3", 3, 300, ("orders/0 10..30",)),),
    )
    seen = seen_meta("c", Outline("c", 1, (topic,), (), (), health, summed), (), _overview(None, None))

    assert seen.topic_sums == {TOPIC: TopicSums(200, 137, 70, 10, "shard 0: no leader")}
    assert seen.node_sums == {1: NodeSums(2, 1, 75), 9: NodeSums(3, 0, None)}
    assert seen.mount_sums == {"tier/3": MountSums(3, 300, ("orders/0 10..30",))}
    assert seen.unwell == ("shard 0 of orders: no leader",)


def test_what_is_under_replicated_is_named_and_counted() -> None:
    kinds = (TroubleCount("no_leader", 3), TroubleCount("too_few_copies", 7), TroubleCount("not_in_sync", 2))
    troubles = tuple(
        TroubledShard("orders", number, 0, kind, "words", (), None, (), ())
        for number, kind in enumerate(("no_leader", "too_few_copies"))
    )
    overview = replace(_overview(None), trouble_kinds=kinds, troubles=troubles)
    nothing = Outline("c", 1, (), (), (), ShardHealth((), 0, (), ()), outline.Sums((), (), ()))
    seen = seen_meta("c", nothing, (), overview)

    assert (seen.thin, seen.thin_count) == (("shard 1 of orders: words",), 9)


@pytest.mark.fault("records-topic-replica-volume")
def test_what_only_a_volume_read_in_place_has_is_not_under_replicated() -> None:
    """A scale-in by RemountVolume leaves it there on purpose: the cluster was never healthy again."""
    mount = Mount("tier/5", MountMode.VOLUME, 5, "disk-5", MountState.SERVING, 1, 0)
    nothing = Outline("c", 1, (), (), (mount,), ShardHealth((), 0, (), ()), outline.Sums((), (), ()))

    def thin(*nodes: tuple[int, ...]) -> tuple[tuple[str, ...], int]:
        troubles = tuple(
            TroubledShard("alone", number, 0, "no_copy", "words", of, None, (), ()) for number, of in enumerate(nodes)
        )
        overview = replace(_overview(None), trouble_kinds=(TroubleCount("no_copy", len(nodes)),), troubles=troubles)
        seen = seen_meta("c", nothing, (), overview)
        return seen.thin, seen.thin_count

    assert thin((5,), (5,)) == ((), 0)
    assert thin((5,), (4, 5), ()) == (("shard 1 of alone: words", "shard 2 of alone: words"), 2)
