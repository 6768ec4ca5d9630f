"""What `stratalog cluster status` says of a cluster, without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from stratalog_cli.cluster.plan import Role
from stratalog_cli.cluster.status import ClusterStatus, PartStatus, print_status, trouble_lines
from stratalog_cli.entry import build_app


def trouble(shard: int, *nodes: int, words: str = "2 of 3 replicas in sync") -> dict[str, Any]:
    segment = {"topic_id": "t", "shard": shard, "epoch": shard, "base_offset": 0}
    return {"topic": "orders", "segment": segment, "kind": "not_in_sync", "nodes": list(nodes), "words": words}


def test_one_lost_node_is_one_line_however_many_shards_miss_it() -> None:
    (line,) = trouble_lines([trouble(shard, 1) for shard in range(2_000)])
    assert line.startswith("not_in_sync: orders-0, orders-1, ")
    assert line.endswith(" and 1,992 more shards: 2 of 3 replicas in sync")
    assert len(line) < 200


def test_shards_of_which_something_else_is_said_have_a_line_of_their_own() -> None:
    lines = trouble_lines([trouble(0, 1), trouble(1, 2), trouble(2, 3, words="start node 3"), trouble(3, 3)])
    assert lines == [
        "not_in_sync: orders-0, orders-1, orders-3: 2 of 3 replicas in sync",
        "not_in_sync: orders-2: start node 3",
    ]


def part(name: str, state: str) -> PartStatus:
    return PartStatus(
        name=name,
        role=Role.ETCD,
        state=state,
        words="in order",
        leads=None,
        pid=None,
        since_ms=None,
        addresses={},
        log="",
        log_tail=[],
    )


def cluster(
    parts: list[PartStatus],
    *,
    is_running: bool = True,
    stopped_shards: Sequence[str] = (),
    troubles: Sequence[dict[str, Any]] | None = None,
) -> ClusterStatus:
    return ClusterStatus(
        data="D",
        is_running=is_running,
        bootstrap="",
        store="etcd",
        bucket=None,
        parts=parts,
        stopped_shards=list(stopped_shards),
        troubles=None if troubles is None else list(troubles),
    )


@pytest.mark.parametrize(
    ("is_running", "states", "expected"),
    [
        (True, ("ready", "ready"), None),
        (True, ("ready", "stopped"), "next: stratalog cluster start --data D --part etcd-2"),
        (
            True,
            ("stopped", "stopped"),
            "next: stratalog cluster start --data D --part etcd-1 (and the same for etcd-2)",
        ),
        (False, ("stopped", "stopped"), "next: stratalog cluster start --data D"),
    ],
)
def test_what_was_stopped_is_reported_how_to_start(
    capsys: pytest.CaptureFixture[str], is_running: bool, states: tuple[str, ...], expected: str | None
) -> None:
    parts = [part(f"etcd-{number}", state) for number, state in enumerate(states, 1)]
    print_status(cluster(parts, is_running=is_running))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    assert said == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("ready", "ready", "stopped"), "No meta service answers. Whether"),
        (
            ("ready", "stopped", "not ready"),
            "No meta service answers, because etcd has no majority: 1 of 3 members ready, start etcd-2 or etcd-3. "
            "Whether",
        ),
    ],
)
def test_why_no_meta_service_answers_is_reported_where_etcd_is_the_cause(
    capsys: pytest.CaptureFixture[str], states: tuple[str, ...], words: str
) -> None:
    parts = [part(f"etcd-{number}", state) for number, state in enumerate(states, 1)]
    print_status(cluster(parts))
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize(
    ("told", "code"),
    [
        (cluster([part("node-1", "ready"), part("node-2", "retired")], troubles=[]), 0),
        (cluster([part("node-1", "ready"), part("node-2", "ended")], troubles=[]), 1),
        (cluster([part("node-1", "ready"), part("node-2", "starting")], troubles=[]), 1),
        (cluster([part("node-1", "ready")], troubles=[trouble(0, 1)]), 1),
        (cluster([part("node-1", "ready")], troubles=[], stopped_shards=["node-1: orders-0 takes no writes"]), 1),
        (cluster([part("node-1", "ready")], troubles=None), 1),
        (cluster([part("node-1", "stopped")], is_running=False, troubles=None), 1),
    ],
    ids=("in order", "ended", "starting", "in trouble", "stopped shard", "no meta service", "does not run"),
)
def test_the_exit_code_says_whether_all_is_in_order(
    monkeypatch: pytest.MonkeyPatch, told: ClusterStatus, code: int, form: str
) -> None:
    monkeypatch.setattr("stratalog_cli.cluster.status.read_status", lambda _: told)
    assert CliRunner().invoke(build_app(("cluster",)), ["cluster", "status", "-o", form]).exit_code == code
