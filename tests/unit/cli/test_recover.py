"""`stratalog recover` and `stratalog cluster health`, over a meta service that runs in the test."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from stratalog.model.activity import Activity
from stratalog.model.commands.table_commands import BeginRecovery, CreateTopic, NoteLives, PromiseFence, RegisterNode
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import Heartbeat, Life, NodeInfo, Vitals
from stratalog_cli.entry import build_app
from stratalog_meta.service import MetaService
from unit.cli.test_nodes_command import serving, two_nodes

APP = build_app(("recover", "cluster"))


def run(meta: str, *words: str) -> Result:
    return CliRunner().invoke(APP, [*words, "--meta", meta])


async def _nodes(service: MetaService, count: int) -> None:
    for node_id in range(1, count + 1):
        await service.perform(RegisterNode(NodeInfo(node_id, f"disk-{node_id}", "127.0.0.1", 9_000 + node_id)))


async def one_replica_lost(service: MetaService) -> None:
    await _nodes(service, 2)
    topic = await service.perform(CreateTopic("flights", 1, 1))
    leader = (await service.shard(ShardKey(topic.topic_id, 0))).segments[-1].leader
    assert leader is not None
    await service.perform(NoteLives(lost=(Life(leader, 1),)))


async def one_of_two_answered(service: MetaService) -> None:
    """By the majority of two both have to answer: node 2 promised [0, 5) and saw that 9 were acknowledged."""
    await _nodes(service, 2)
    topic = await service.perform(CreateTopic("flights", 1, 2, {"acks.policy": "quorum"}))
    segment = (await service.shard(ShardKey(topic.topic_id, 0))).segments[-1]
    assert segment.leader is not None
    other = 3 - segment.leader
    await service.perform(NoteLives(lost=(Life(segment.leader, 1),)))
    await service.perform(BeginRecovery(segment.key))
    await service.perform(PromiseFence(segment.key, segment.epoch + 1, 5, 9, is_tail_whole=True, caller=Life(other, 1)))


def test_what_is_given_up_is_shown_exactly_before_anything_is_done() -> None:
    """Before, it took two POST requests, and the second gave up data that no one had looked at."""
    with serving(one_of_two_answered) as meta:
        dry = run(meta, "recover", "flights", "--shard", "0", "--unclean", "--dry-run")
        assert dry.exit_code == 0, dry.output
        assert "gives up 4 offsets, [5, 9); the log continues at offset 5" in dry.stdout
        assert "nothing was changed: this was a dry run" in dry.stdout
        unsure = run(meta, "recover", "flights", "--shard", "0", "--unclean")
        assert unsure.exit_code == 2 and "add --yes to give up offsets [5, 9) of flights-0" in unsure.stderr
        kept = run(meta, "recover", "flights", "--shard", "0", "--unclean", "--dry-run")
        assert "[5, 9)" in kept.stdout, "nothing was done so far"
        done = run(meta, "recover", "flights", "--shard", "0", "--unclean", "--yes")
        assert done.exit_code == 0 and "it continues without them" in done.stdout
        over = run(meta, "recover", "flights", "--shard", "0")
        assert over.exit_code == 2 and "waits for no node" in over.stderr


def test_a_recovery_begins_without_giving_up_anything() -> None:
    with serving(one_replica_lost) as meta:
        dry = run(meta, "recover", "flights", "--shard", "0", "--unclean", "--dry-run")
        assert dry.exit_code == 0 and "what is lost is known after that" in dry.stdout
        begun = run(meta, "recover", "flights", "--shard", "0")
        assert begun.exit_code == 0 and "its recovery has begun" in begun.stdout
        assert "waiting for node" in begun.stdout, "what it waits for is said"
        planned = run(meta, "recover", "flights", "--shard", "0", "--unclean", "--dry-run")
        assert "gives up what was written from offset 0 on: no node that answers knows" in planned.stdout


@pytest.mark.parametrize("words", [("flights", "--shard", "1"), ("nothing", "--shard", "0")])
def test_a_shard_that_waits_for_no_node_is_left_alone(words: tuple[str, ...]) -> None:
    with serving(one_replica_lost) as meta:
        refused = run(meta, "recover", *words, "--unclean", "--yes")
    assert refused.exit_code == 2 and "there is nothing to recover; nothing was done" in refused.stderr


async def heard_nodes(service: MetaService) -> None:
    await two_nodes(service)
    for node_id in (1, 2):
        told = Vitals(50 << 30, 100 << 30, has_store=False, activity=Activity(0, 0))
        await service.heartbeat(Heartbeat(Life(node_id, 1), vitals=told))


def test_the_health_of_any_cluster_is_reported_by_its_meta_service() -> None:
    """There was a command for the processes of one machine alone."""
    with serving(heard_nodes) as meta:
        well = run(meta, "cluster", "health")
        assert well.exit_code == 0 and "All is in order" in well.stdout, well.output
        assert json.loads(run(meta, "cluster", "health", "-o", "json").stdout)["is_in_order"] is True
    with serving(one_replica_lost) as meta:
        ill = run(meta, "cluster", "health")
        told = json.loads(run(meta, "cluster", "health", "-o", "json").stdout)
    assert ill.exit_code == 1 and "is not alive" in ill.stdout and "no_leader: flights-0: no leader;" in ill.stdout
    lost = [line for line in ill.stdout.splitlines() if line.startswith("node ") and "is not alive" in line]
    assert lost and all("start it" in line for line in lost) and len(set(lost)) == len(lost), "each node once"
    assert not told["is_in_order"] and len(told["findings"]) >= 2 and told["led"] == 0
