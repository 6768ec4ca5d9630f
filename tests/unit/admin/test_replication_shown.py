"""What a node follows, and what its groups lost, on its page and in the tables of the command line."""

from __future__ import annotations

import pytest

from stratalog.admin_api.models import (
    FollowedSegment,
    GivenUpGroups,
    KnownNode,
    NodeStatus,
    ReplicationStatus,
    SegmentInfo,
    Tier,
    TierBytes,
)
from stratalog.admin_api.wording import following_lines, following_words, given_up_lines
from stratalog.ui.page import Page
from stratalog.ui.pages.nodes import status_lines
from stratalog.ui.render import render
from stratalog_cli.admin.status import _print
from stratalog_cli.topics.segments import _row

BEHIND = ReplicationStatus(
    segments=1_200,
    behind=2,
    lag_offsets=30,
    lag_bytes=3 << 20,
    copies_due=7,
    faulty_copies=1,
    worst=[
        FollowedSegment(topic="a", shard=0, epoch=3, life="faulty", lag_offsets=20, lag_bytes=2 << 20, asks=None),
        FollowedSegment(topic="b", shard=1, epoch=0, life="copying", lag_offsets=10, lag_bytes=1 << 20, asks=2),
    ],
)


def status(replication: ReplicationStatus, given_up: tuple[GivenUpGroups, ...] = ()) -> NodeStatus:
    return NodeStatus(
        node_id=1,
        cluster_id="c",
        version="1",
        started_ms=0,
        now_ms=0,
        kafka_address="",
        admin_address="",
        data_dir="",
        bucket=None,
        is_ready=True,
        topics=0,
        shards=0,
        segments={},
        bytes=TierBytes(),
        upload_lag_bytes=0,
        upload_lag_shards=0,
        disk_total_bytes=1,
        disk_free_bytes=1,
        disk_reserve_bytes=0,
        resident_bytes=0,
        loop_blocks=0,
        replication=replication,
        groups_given_up=list(given_up),
    )


def node_page_of(told: NodeStatus) -> str:
    """A node's page of the cluster UI, as this node tells of itself."""
    data = {"node_id": 1, "node": None, "status": told, "why_not": None, "lines": status_lines(told)}
    extra = {"plots": [], "follows": following_words(told.replication), "cold_reads": "", "page_url": ""}
    return render(Page("node.html", "Node 1", "/nodes", data, extra), "")


def test_the_page_shows_the_lag_of_copies_and_names_those_without_a_source() -> None:
    page = node_page_of(status(BEHIND))
    assert "Replication lag" in page and "3.0 MiB" in page
    assert "2 of 1,200 followed segments behind, 7 to be copied, 1 faulty" in page
    assert page.count("copies from no node now") == 1 and "copy of a-0, epoch 3: faulty, 20 offsets behind" in page


def test_a_node_that_follows_nothing_says_nothing_of_it() -> None:
    assert "Replication" not in node_page_of(status(ReplicationStatus()))
    assert following_lines(ReplicationStatus()) == []
    assert following_words(ReplicationStatus(segments=3)) == "0 of 3 followed segments behind"


def test_groups_that_restarted_without_given_up_data_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told = status(ReplicationStatus(), (GivenUpGroups(shard=3, base_offset=10, end_offset=20),))
    words = "offsets 10 to 19 of shard 3 of the group log were given up"
    assert words in node_page_of(told)
    _print(told)
    assert words in capsys.readouterr().out
    assert "group log" not in node_page_of(status(ReplicationStatus()))


def test_a_node_that_has_left_is_not_shown_as_one_that_should_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        KnownNode(node_id=1, kafka_address="a:1", rack=None, is_alive=True),
        KnownNode(node_id=2, kafka_address="b:2", rack="r", is_alive=False),
        KnownNode(node_id=3, kafka_address="c:3", rack=None, is_alive=False, is_retired=True),
    ]
    _print(status(ReplicationStatus()).model_copy(update={"nodes": nodes}))
    assert "1 at a:1; 2 at b:2 in r (not alive); 3 at c:3 (retired)" in capsys.readouterr().out


def test_a_list_of_segments_shows_replicas_and_the_nodes_with_a_whole_copy() -> None:
    def info(isr: list[int], local_nodes: list[int]) -> SegmentInfo:
        return SegmentInfo(
            topic="a",
            shard=0,
            epoch=0,
            state="active",
            base_offset=0,
            end_offset=1,
            size_bytes=1,
            first_timestamp_ms=-1,
            max_timestamp_ms=-1,
            tier=Tier.LOCAL,
            remote_state="none",
            commit_offset=-1,
            leader=1,
            replicas=[1, 2, 3],
            isr=isr,
            local_nodes=local_nodes,
            digest=None,
            places=[],
        )

    assert _row(info([1, 2], []))[-3:] == ("1*,2,3", "1,2", "-")
    assert _row(info([], [3]))[-3:] == ("1*,2,3", "3", "-")


def test_after_a_restore_one_line_says_that_nothing_of_the_group_log_is_known_to_be_lost() -> None:
    lost = GivenUpGroups(shard=9, base_offset=4, end_offset=7)
    ends = [(shard, offset) for shard in (1, 3) for offset in (4, 5)]
    in_doubt = [GivenUpGroups(shard=shard, base_offset=at, end_offset=at) for shard, at in ends]
    first, *others = given_up_lines(status(BEHIND, (*in_doubt, lost)))
    assert first.startswith("offsets 4 to 6 of shard 9 of the group log were given up")
    assert len(others) == 1 and others[0].startswith("shards 1, 3 of the group log: nothing is known to be lost")
