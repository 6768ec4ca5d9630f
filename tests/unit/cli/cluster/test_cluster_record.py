"""`cluster.json` and `options.json`: they are read as they were written, and damage is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.model.errors import InvalidRequest, NotFound
from stratalog_cli.cluster.directory import ClusterDirectory
from stratalog_cli.cluster.plan import Asked, first_plan
from stratalog_cli.cluster.record import cluster_text, options_text, plan_of

PLAN = first_plan(Asked(bucket="/b", settings=("log.roll.ms=7",)), has_etcd=True)


def test_the_file_says_what_runs_where_and_null_for_what_does_not() -> None:
    told = json.loads(cluster_text(PLAN, {"node-1": 123}))
    assert set(told) == {"bootstrap", "page", "parts"} and told["bootstrap"] == PLAN.bootstrap
    assert told["parts"][6] == {
        "name": "node-1",
        "role": "node",
        "pid": 123,
        "addresses": {"kafka": "127.0.0.1:9092", "admin": "127.0.0.1:9644"},
    }
    assert [part["pid"] for part in told["parts"]].count(None) == 8


def test_what_was_written_is_read_back() -> None:
    pids = {"etcd-2": 7, "node-3": 8}
    assert plan_of(cluster_text(PLAN, pids), options_text(PLAN.choices), where="/c") == (PLAN, pids)


def without_nodes(told: dict[str, Any]) -> None:
    told["parts"] = [part for part in told["parts"] if part["role"] != "node"]


def twice(told: dict[str, Any]) -> None:
    told["parts"].append(told["parts"][0])


def with_another_name(told: dict[str, Any]) -> None:
    told["parts"][0]["name"] = "../../etcd-1"


def with_another_role(told: dict[str, Any]) -> None:
    told["parts"][0]["role"] = "node"


def without_an_address(told: dict[str, Any]) -> None:
    del told["parts"][0]["addresses"]["peer"]


def with_a_wrong_address(told: dict[str, Any]) -> None:
    told["parts"][0]["addresses"]["peer"] = "nowhere"


def without_etcd(told: dict[str, Any]) -> None:
    told["parts"] = [part for part in told["parts"] if part["role"] != "etcd"]


def with_something_else(told: dict[str, Any]) -> None:
    told["more"] = 1


@pytest.mark.parametrize(
    "damage",
    [
        without_nodes, twice, with_another_name, with_another_role, without_an_address, with_a_wrong_address,
        without_etcd, with_something_else,
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_refused_and_named(damage: Callable[[dict[str, Any]], None]) -> None:
    told = json.loads(cluster_text(PLAN, {}))
    damage(told)
    with pytest.raises(InvalidRequest, match=r"/c/cluster.json is not as `stratalog cluster` writes it"):
        plan_of(json.dumps(told), options_text(PLAN.choices), where="/c")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"store": "paper"}', "[" * 100_000])
def test_options_that_cannot_be_read_are_refused_and_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"/c/options.json is not"):
        plan_of(cluster_text(PLAN, {}), text, where="/c")


# The directory --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stands", "words"), [("node", "stratalog start --data"), ("meta", "stratalog start"), ("thesis.tex", "thesis.tex")]
)
def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, stands: str, words: str) -> None:
    (tmp_path / stands).mkdir()
    with pytest.raises(InvalidRequest, match=words):
        ClusterDirectory(tmp_path).require_new()


def test_what_a_start_that_came_to_nothing_left_is_no_hindrance(tmp_path: Path) -> None:
    for name in ("cluster.lock", "control.sock", "options.json"):
        (tmp_path / name).touch()
    ClusterDirectory(tmp_path).require_new()
    ClusterDirectory(tmp_path / "new").require_new()


def test_a_directory_without_a_cluster_and_one_that_lost_a_file_are_named(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    with pytest.raises(NotFound, match="cluster start --data"):
        directory.read()
    directory.write(PLAN, {})
    with pytest.raises(InvalidRequest, match="put back what is gone"):
        directory.read()


def test_options_are_for_their_owner_alone_for_a_url_may_hold_a_secret(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.write_options(PLAN)
    assert (tmp_path / "options.json").stat().st_mode & 0o077 == 0


def test_other_users_of_the_machine_read_no_log_for_it_names_who_did_what(tmp_path: Path) -> None:
    log, _ = ClusterDirectory(tmp_path).open_log(PLAN.part("node-1"))
    os.close(log)
    assert (tmp_path / "logs" / "node-1.log").stat().st_mode & 0o007 == 0
