"""`stratalog quotas`, by a Kafka listener and by the meta service, against a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stratalog_cli.entry import build_app
from support.closed_node import PASSWORD, ClosedNode
from support.cluster_ports import free_port
from support.waiting import eventually_sync

APP = build_app()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    settings = {
        "authorizer.class.name": "stratalog",
        "super.users": "User:ANONYMOUS",
        "meta.listen": f"127.0.0.1:{free_port()}",
    }
    with ClosedNode(tmp_path_factory.mktemp("closed"), settings) as node:
        yield node


@pytest.fixture(params=["bootstrap", "meta"])
def place(request: pytest.FixtureRequest, node: ClosedNode) -> dict[str, str | None]:
    """What commands find in the environment; they do the same either way."""
    if request.param == "bootstrap":
        return {}
    return {"STRATALOG_BOOTSTRAP": None, "STRATALOG_META": f"http://{node.settings['meta.listen']}"}


def run(node: ClosedNode, *words: str, **environment: str | None) -> Result:
    cleared = dict.fromkeys(("STRATALOG_CONTEXT", "STRATALOG_META", "STRATALOG_CLIENT_CONFIG"))
    place = {"STRATALOG_BOOTSTRAP": node.bootstrap, "XDG_CONFIG_HOME": "/nonexistent"}
    return CliRunner().invoke(APP, ["quotas", *words], env={**cleared, **place, **environment})


def done(node: ClosedNode, *words: str, **environment: str | None) -> Any:
    ran = run(node, *words, "--output", "json", **environment)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def of(kind: str, name: str | None) -> dict[str, str | None]:
    return {"type": kind, "name": name}


@pytest.mark.parametrize(
    ("words", "entity", "limit", "kept"),
    [
        (("--user", "ann"), [of("user", "ann")], "producer_byte_rate=1MiB", 1_048_576),
        (("--client", "app"), [of("client-id", "app")], "consumer_byte_rate=1000", 1000),
        (("--user-defaults",), [of("user", None)], "request_percentage=12.5", 12.5),
        (("--client-defaults",), [of("client-id", None)], "controller_mutation_rate=0.5", 0.5),
        (("--ip", "10.0.0.1"), [of("ip", "10.0.0.1")], "connection_creation_rate=7", 7),
        (("--ip-defaults",), [of("ip", None)], "connection_creation_rate=9", 9),
        (
            ("--user", "ann", "--client-defaults"),
            [of("user", "ann"), of("client-id", None)],
            "producer_byte_rate=5",
            5,
        ),
    ],
)
def test_a_limit_is_set_listed_and_removed(
    node: ClosedNode,
    place: dict[str, str | None],
    words: tuple[str, ...],
    entity: list[Any],
    limit: str,
    kept: float,
) -> None:
    key = limit.partition("=")[0]
    expected = {"entity": entity, "limits": {key: kept}}
    assert done(node, "set", *words, limit, **place) == [expected]
    assert expected in done(node, "list", *words, **place) and expected in done(node, "list", **place)
    assert done(node, "remove", *words, "--yes", **place) == [{"entity": entity, "removed": [key]}]
    assert expected not in done(node, "list", **place)
    gone = run(node, "remove", *words, "--yes", **place)
    assert gone.exit_code == 2 and "nothing was removed" in gone.stderr


def test_other_limits_of_an_entity_stay(node: ClosedNode, place: dict[str, str | None]) -> None:
    done(node, "set", "--user", "ben", "producer_byte_rate=1", "consumer_byte_rate=2", **place)
    assert done(node, "set", "--user", "ben", "producer_byte_rate=3", **place)[0]["limits"] == {
        "producer_byte_rate": 3,
        "consumer_byte_rate": 2,
    }
    done(node, "remove", "--user", "ben", "producer_byte_rate", "--yes", **place)
    assert done(node, "list", "--user", "ben", **place)[0]["limits"] == {"consumer_byte_rate": 2}
    done(node, "remove", "--user", "ben", "--yes", **place)


def test_quotas_are_the_same_by_either_way(node: ClosedNode, place: dict[str, str | None]) -> None:
    done(node, "set", "--user", "both", "producer_byte_rate=2", **place)
    for name in ("b", "a"):
        done(node, "set", "--user", "both", "--client", name, "producer_byte_rate=1", **place)
    over_meta = {"STRATALOG_BOOTSTRAP": None, "STRATALOG_META": f"http://{node.settings['meta.listen']}"}
    listed = done(node, "list", **over_meta)
    assert [one["limits"]["producer_byte_rate"] for one in listed if of("user", "both") in one["entity"]] == [2, 1, 1]
    eventually_sync(lambda: done(node, "list") == listed)  # a node follows the metadata


def test_without_a_terminal_nothing_is_removed_and_the_option_named(node: ClosedNode) -> None:
    """Of `quotas remove`."""
    done(node, "set", "--user", "kept", "producer_byte_rate=1")
    ran = run(node, *["quotas", "remove", "--user", "kept"][1:])
    assert ran.exit_code == 2 and "add --yes to" in ran.stderr
    assert "remove producer_byte_rate of user kept" in ran.stderr
    assert done(node, "list", "--user", "kept") != []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "producer_byte_rate=1"), "(--user NAME), a client id (--client ID)"),
        (("remove", "producer_byte_rate", "--yes"), "(--user NAME), a client id (--client ID)"),
        (("set", "--user", "a", "--ip", "::1", "producer_byte_rate=1"), "should not be combined"),
        (("set", "--user", "a", "--user-defaults", "producer_byte_rate=1"), "give a name, or --user-defaults"),
        (("set", "--user", "User:a", "producer_byte_rate=1"), "leave out `User:`"),
        (("set", "--ip", "example.org", "connection_creation_rate=1"), "not looked up"),
        (("set", "--ip", "::1", "producer_byte_rate=1"), "is not a limit of addresses: name a user"),
        (("set", "--user", "a", "connection_creation_rate=1"), "name one by --ip ADDRESS, or --ip-defaults"),
        (("set", "--user", "a", "producer_byte_rat=1"), "did you mean 'producer_byte_rate'"),
        (("set", "--user", "a", "producer_byte_rate"), "expected KEY=LIMIT"),
        (("set", "--user", "a", "producer_byte_rate=0"), "must be greater than 0"),
        (("set", "--user", "a", "producer_byte_rate=nan"), "such as 1048576 or 1MiB"),
        (("set", "--user", "a", "request_percentage=1MiB"), "expected a number"),
        (("set", "--user", "a", "producer_byte_rate=1", "producer_byte_rate=2"), "Duplicate quota key"),
        (("remove", "--user", "a", "speed", "--yes"), "is not a quota"),
    ],
)
def test_what_is_not_a_quota_is_refused(node: ClosedNode, words: tuple[str, ...], why: str) -> None:
    ran = run(node, *words)
    assert ran.exit_code == 2 and why in ran.stderr, ran.output


def test_who_may_not_change_quotas_is_told_which_right_is_missing(node: ClosedNode, tmp_path: Path) -> None:
    node.set_user("eve", "SCRAM-SHA-512")
    file = tmp_path / "eve.properties"
    login = node.librdkafka("eve", "SCRAM-SHA-512", PASSWORD)
    file.write_text("".join(f"{key}={value}\n" for key, value in login.items()))
    own = {"STRATALOG_CLIENT_CONFIG": str(file), "STRATALOG_BOOTSTRAP": node.closed}
    listed = run(node, "list", **own)
    assert listed.exit_code == 2 and "User:eve has no right to DESCRIBE_CONFIGS of the cluster" in listed.stderr
    changed = run(node, "set", "--user", "eve", "producer_byte_rate=1", **own)
    assert changed.exit_code == 2 and "--operation ALTER_CONFIGS --cluster`" in changed.stderr


def test_a_table_shows_each_entity_once(node: ClosedNode) -> None:
    done(node, "set", "--user", "tab\x1b[2J", "producer_byte_rate=1048576")
    shown = run(node, "list").stdout
    assert "1,048,576" in shown and "\x1b" not in shown
