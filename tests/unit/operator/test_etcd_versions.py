"""An etcd that may lose data is used only where a person said so: by the tag of its image, and by what it answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stratalog.model.etcd_versions import is_affected
from stratalog_operator.plan.etcd import needs_etcd_state
from stratalog_operator.plan.etcd_versions import stated_version
from stratalog_operator.resources.cluster import _AFFECTED_TAG
from support.operator_world import World, world

DIGEST = "sha256:" + "0" * 64


def _cluster(version: str, **etcd: Any) -> World:
    one = world(
        1, {"meta": {"etcd": {"replicas": 3, **etcd}}, "defaults": {"replicationFactor": 1, "minInsyncReplicas": 1}}
    )
    one.etcd.version = version
    one.settle()
    return one


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("quay.io/coreos/etcd:v3.5.1", "v3.5.1"),
        ("bitnami/etcd:3.5.9-debian-11-r0", "3.5.9-debian-11-r0"),
        (f"etcd:3.5.20@{DIGEST}", "3.5.20"),
        ("etcd:v3.4.30", "v3.4.30"),
        ("etcd:3.3.27", "3.3.27"),
        ("etcd:v2.3.8", "v2.3.8"),
        ("etcd:v3.5.21", "v3.5.21"),
        ("etcd:v3.5.100-arm64", "v3.5.100-arm64"),
        ("etcd:3.6.16", "3.6.16"),
        ("etcd:v3.15.1", "v3.15.1"),
        ("registry:5000/etcd", ""),
        (f"etcd@{DIGEST}", ""),
        ("etcd:latest", ""),
        ("etcd:3.5", ""),
        ("etcd", ""),
    ],
)
def test_a_tag_states_a_version_and_the_definition_refuses_the_same_ones(image: str, version: str) -> None:
    assert stated_version(image) == version
    by_definition = re.search(_AFFECTED_TAG.replace("\\\\", "\\"), image) is not None
    assert by_definition is is_affected(version)


def test_the_image_of_the_cluster_is_used_without_a_word() -> None:
    one = _cluster("3.6.16")

    assert one.condition("StorageCluster", "main", "Stalled").status == "False"
    assert len(one.nodes) == 1
    assert [member.version for member in one.cluster.status.etcd_members] == ["3.6.16"] * 3
    assert not needs_etcd_state(one.observe())


def test_an_image_that_states_an_affected_version_gets_no_node_until_a_person_accepts_it() -> None:
    """The definition refuses it; this object is older than the rule."""
    one = _cluster("3.5.1", image="etcd:v3.5.1")
    stalled = one.condition("StorageCluster", "main", "Stalled")

    assert (stalled.status, stalled.reason, len(one.nodes)) == ("True", "EtcdAffected", 0)
    assert "3.5.1" in stalled.message and "meta.etcd.trial" in stalled.message

    one.edit_cluster({"meta": {"etcd": {"replicas": 3, "image": "etcd:v3.5.1", "trial": True}}})
    one.settle()
    assert (one.condition("StorageCluster", "main", "Stalled").status, len(one.nodes)) == ("False", 1)


@pytest.mark.fault("members-etcd-answer-version")
@pytest.mark.parametrize(("answered", "nodes"), [("3.5.1", 0), ("3.6.16", 1)])
def test_an_image_that_states_no_version_gets_no_node_before_its_members_answered_theirs(
    answered: str, nodes: int
) -> None:
    image = f"etcd@{DIGEST}"
    one = world(
        1,
        {
            "meta": {"etcd": {"replicas": 3, "image": image}},
            "defaults": {"replicationFactor": 1, "minInsyncReplicas": 1},
        },
    )
    one.etcd.version = answered
    one.turn()
    assert not one.nodes, "nobody has answered yet"
    assert one.condition("StorageCluster", "main", "Progressing").reason == "EtcdVersionUnknown"

    one.settle()
    assert len(one.nodes) == nodes
    assert (one.condition("StorageCluster", "main", "Stalled").reason == "EtcdAffected") is (nodes == 0)


@pytest.mark.fault("members-etcd-answer-version")
def test_a_cluster_that_has_nodes_keeps_working_and_says_what_its_etcd_is() -> None:
    """The image states 3.6.16 and is another: what members answer counts."""
    one = _cluster("3.6.16", image="etcd:3.6.16")
    one.etcd.version = "3.5.9"
    del one.pods["main-etcd-0"]
    one.settle()
    one.scale(2)
    one.settle()

    stalled = one.condition("StorageCluster", "main", "Stalled")
    assert (stalled.status, stalled.reason, len(one.nodes)) == ("True", "EtcdAffected", 2)
    assert "main-etcd-0 is etcd 3.5.9" in stalled.message

    assert not needs_etcd_state(one.observe()), "it is not asked again before its pod is another one"

    one.etcd.version = "3.6.16"
    del one.pods["main-etcd-0"]
    one.settle()
    assert one.condition("StorageCluster", "main", "Stalled").status == "False"
