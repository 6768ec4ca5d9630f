"""What `topics describe` makes of the answers of several nodes: each knows the end only of shards that it leads."""

from __future__ import annotations

import pytest

from stratalog.admin_api.models import ShardInfo, TierBytes, TopicDetail, TopicInfo
from stratalog.model.errors import Unavailable
from stratalog_cli.connect.several_nodes import Nodes
from stratalog_cli.topics.topics import told_by_leaders

NONE = TierBytes(local=0, cold=0)
TOPIC = TopicInfo(
    name="orders",
    topic_id="t",
    shards=2,
    replication_factor=2,
    is_internal=False,
    created_ms=0,
    settings={},
    segments=2,
    bytes=NONE,
)


def told_by(node_id: int, *leaders_and_ends: tuple[int, int | None]) -> TopicDetail:
    shards = [
        ShardInfo(
            shard=number,
            log_start_offset=0,
            high_watermark=end,
            last_stable_offset=end,
            commit_offset=-1,
            leader=leader,
            isr=[1, 2],
            epoch=0,
            segments=1,
            bytes=NONE,
        )
        for number, (leader, end) in enumerate(leaders_and_ends)
    ]
    return TopicDetail(topic=TOPIC, shards=shards, settings=[], node_id=node_id)


def test_the_end_of_a_shard_is_what_its_leader_says_and_leaders_that_were_not_asked_are_named() -> None:
    one, two = told_by(1, (1, 10), (2, None)), told_by(2, (1, None), (2, 20))
    told, silent = told_by_leaders([one, two])
    assert [shard.high_watermark for shard in told.shards] == [10, 20]
    assert silent == set()
    assert told_by_leaders([one])[1] == {2}


def test_a_node_that_does_not_answer_is_named_once_however_often_it_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = Nodes("127.0.0.1:1,127.0.0.1:2")
    for _ in range(2):
        with pytest.raises(Unavailable):
            nodes.each(lambda node: node.topics())
    assert capsys.readouterr().err.count("left out:") == 2
