"""The operator is killed after each single write of a story, one run for each of them: the end is always the same.

The world of `support/operator_world` fails a run at once that breaks what must hold meanwhile. Requests that make up
one action between them (the guard of a claim is three) are one write here; with real requests they are taken
apart in test_operator_dies_served.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from stratalog_operator.plan.observed import Seen
from stratalog_operator.resources.mount import ReadOnlyMountSpec, ReadOnlyMountStatus
from stratalog_operator.resources.topic import TopicStorageSpec, TopicStorageStatus
from support.operator_world import World, world


def _nothing_yet() -> World:
    made = world(3, pool={"zones": ["a", "b"]})
    spec = TopicStorageSpec.model_validate({"clusterRef": "main", "topicName": "orders", "deletionPolicy": "Delete"})
    made.topics["orders"] = Seen("orders", "uid-of-orders", spec, TopicStorageStatus())
    source = {"topics": {"names": ["orders"]}}
    by_hand = ReadOnlyMountSpec.model_validate({"clusterRef": "main", "source": source})
    made.mounts["january"] = Seen("january", "uid-of-january", by_hand, ReadOnlyMountStatus())
    return made


def _up(nodes: int, spec: Mapping[str, Any] | None = None) -> World:
    made = _nothing_yet()
    made.scale(nodes)
    if spec:
        made.edit_cluster(spec)
    made.settle()
    return made


def _delete(one: World) -> None:
    one.cluster = replace(one.cluster, is_deleting=True)
    one.annotate_cluster(allow_deletion="uid-of-main")
    # A copy that is deleted with its cluster does not count as a lost last copy.
    if one.cluster.spec.storage_retention.when_deleted == "Delete":
        one.needed.clear()


def _delete_objects(one: World) -> None:
    for place in (one.topics, one.mounts):
        for name, found in list(place.items()):
            place[name] = replace(found, is_deleting=True, deleted=one.now)


@dataclass(frozen=True)
class Story:
    begin: Callable[[], World]
    """A world that is quiet, or in which nothing was done yet."""
    wish: Callable[[World], None]
    nodes: list[int]
    """At the end."""
    least_writes: int
    """Fewer would mean that the story was not told."""
    claims: list[str] = field(default_factory=list)


def _claims(*numbers: int) -> list[str]:
    return [f"data-main-hot-{number}" for number in numbers]


STORIES = {
    "comes up": Story(_nothing_yet, lambda one: None, [1, 2, 3], 30, _claims(1, 2, 3)),
    "scaled out": Story(lambda: _up(2), lambda one: one.scale(4), [1, 2, 3, 4], 15, _claims(1, 2, 3, 4)),
    "scaled in, Offload": Story(lambda: _up(4), lambda one: one.scale(2), [1, 2], 15, _claims(1, 2)),
    "scaled in, RemountVolume": Story(
        lambda: _up(4, {"scaleIn": {"mode": "RemountVolume"}}),
        lambda one: one.scale(2),
        [1, 2],
        20,
        _claims(1, 2, 3, 4),
    ),
    "scaled in, volumes kept": Story(
        lambda: _up(3, {"storageRetention": {"whenScaled": "Retain"}}),
        lambda one: one.scale(2),
        [1, 2],
        10,
        _claims(1, 2, 3),
    ),
    "topic and mount deleted": Story(lambda: _up(3), _delete_objects, [1, 2, 3], 4, _claims(1, 2, 3)),
    "deleted, volumes stay": Story(lambda: _up(3), _delete, [], 5, _claims(1, 2, 3)),
    "deleted with its volumes": Story(lambda: _up(3, {"storageRetention": {"whenDeleted": "Delete"}}), _delete, [], 8),
}


def _end(one: World) -> dict[str, object]:
    """How it looks to people; not who got which UID."""
    return {
        "nodes": one.node_ids(),
        "claims": sorted((claim.name, claim.is_guarded, claim.is_released) for claim in one.claims.values()),
        "sets": sorted((found.name, found.replicas) for found in one.sets.values()),
        "pods": sorted((pod.name, pod.is_ready) for pod in one.pods.values()),
        "members": sorted((member.node_id, member.is_alive) for member in one.members.values()),
        "mounts": sorted((mount.name, mount.finalizers) for mount in one.mounts.values()),
        "mounts of the service": sorted((*(str(key) for key in one.meta_mounts), *one.user_mounts)),
        "topics": sorted((topic.name, topic.finalizers) for topic in one.topics.values()),
        "topics of the service": sorted(one.meta_topics),
        "retired": sorted(found.node_id for found in one.cluster.status.retired_nodes),
        "finalizers": (one.cluster.finalizers, sorted((pool.name, pool.finalizers) for pool in one.pools.values())),
        "next id": one.cluster.status.next_node_id,
        "made": sorted(one.hashes),
    }


@pytest.mark.parametrize("title", STORIES)
def test_killed_after_each_write_it_comes_to_the_same_end(title: str) -> None:
    story = STORIES[title]
    begin = story.begin()
    begin.writes = 0
    whole = begin.copied()
    story.wish(whole)
    whole.settle()
    wanted = _end(whole)
    assert whole.node_ids() == story.nodes and sorted(whole.claims) == story.claims
    assert whole.is_quiet() and whole.writes >= story.least_writes

    for writes in count():
        one = begin.copied()
        story.wish(one)
        one.dies_after = writes
        one.settle()
        if one.dies_after is not None:
            break
        assert _end(one) == wanted, f"killed after write {writes} of {whole.writes}"
        assert one.is_quiet(), f"killed after write {writes}: it never has enough"
    assert writes == whole.writes, "every write was somebody's last"
