"""`stratalog users` and `acls`, by a Kafka listener and by the meta service, against a real node."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient, ResourcePatternType
from confluent_kafka.admin import ResourceType as KafkaResource
from typer.testing import CliRunner, Result

from stratalog.connect.brokers import check_broker
from stratalog.connect.client_settings import settings_of
from stratalog.connect.listener import LoginRefused
from stratalog_cli.entry import build_app
from support.closed_node import ClosedNode
from support.cluster_ports import free_port

APP = build_app()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    settings = {
        "authorizer.class.name": "stratalog",
        "super.users": "User:ANONYMOUS;User:admin",  # clients of the listener without a login
        "meta.listen": f"127.0.0.1:{free_port()}",
    }
    with ClosedNode(tmp_path_factory.mktemp("closed"), settings) as node:
        yield node


@pytest.fixture(params=["bootstrap", "meta"])
def place(request: pytest.FixtureRequest, node: ClosedNode) -> tuple[str, str]:
    """Option and address; a command does the same either way."""
    meta = f"http://{node.settings['meta.listen']}"
    return ("--bootstrap", node.bootstrap) if request.param == "bootstrap" else ("--meta", meta)


def run(*words: object, text: str | None = None, **environment: str) -> Result:
    cleared = dict.fromkeys(("STRATALOG_CONTEXT", "STRATALOG_META", "STRATALOG_BOOTSTRAP", "STRATALOG_CLIENT_CONFIG"))
    return CliRunner().invoke(
        APP, list(map(str, words)), input=text, env={**cleared, "XDG_CONFIG_HOME": "/nonexistent", **environment}
    )


def done(*words: object, **more: Any) -> str:
    ran = run(*words, **more)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def listed(*words: object) -> Any:
    return json.loads(done(*words, "--output", "json"))


def log_in(node: ClosedNode, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
    """Raises: LoginRefused."""
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.truststore.location": node.ca,
    }
    host, _, port = node.closed.rpartition(":")
    check_broker(host, int(port), settings_of(given, ""))


# Users ------------------------------------------------------------------------------------------------------------
def test_a_user_is_created_logs_in_and_is_deleted(node: ClosedNode, place: tuple[str, str]) -> None:
    name = f"alice-by{place[0]}"
    password = done("users", "create", name, *place).splitlines()
    assert len(password) == 1 and len(password[0]) == 32
    log_in(node, name, password[0])
    assert {"user": name, "mechanism": "SCRAM-SHA-512", "iterations": 4096} in listed("users", "list", *place)
    done("users", "delete", name, "--yes", *place)
    with pytest.raises(LoginRefused):
        log_in(node, name, password[0])
    gone = run("users", "delete", name, "--yes", *place)
    assert gone.exit_code == 2 and "there is no user" in gone.stderr


def test_a_password_comes_from_a_file_standard_input_or_the_environment(
    node: ClosedNode, place: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("from a file\nnot this line\n")
    name = f"bob-by{place[0]}"
    for how in (
        {"words": ("--password-file", file), "password": "from a file"},
        {"words": ("--password-file", "-"), "text": "from a pipe\n", "password": "from a pipe"},
        {"words": (), "STRATALOG_NEW_PASSWORD": "from outside", "password": "from outside"},
    ):
        words, password = how.pop("words"), str(how.pop("password"))
        told = done("users", "create", name, "--replace", "--mechanism", "SCRAM-SHA-256", *words, *place, **how)  # type: ignore[misc]
        assert password not in told
        log_in(node, name, password, "SCRAM-SHA-256")


def test_a_password_that_is_made_goes_to_a_file_that_only_its_owner_reads(
    node: ClosedNode, place: tuple[str, str], tmp_path: Path
) -> None:
    file, name = tmp_path / "password", f"carol-by{place[0]}"
    told = done("users", "create", name, "--password-out", file, *place)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    password = file.read_text().strip()
    assert password not in told
    log_in(node, name, password)
    again = run("users", "create", name, "--replace", "--password-out", file, *place)
    assert again.exit_code == 2 and "is there already" in again.stderr
    log_in(node, name, password)


def test_a_password_is_replaced_only_where_that_is_said(
    node: ClosedNode, place: tuple[str, str], tmp_path: Path
) -> None:
    name = f"dave-by{place[0]}"
    first = done("users", "create", name, *place).strip()
    file = tmp_path / "out"
    again = run("users", "create", name, "--password-out", file, *place)
    assert again.exit_code == 2 and "--replace" in again.stderr and not file.exists()
    log_in(node, name, first)


@pytest.mark.parametrize(
    ("words", "text", "why"),
    [
        (("User:alice",), None, "leave it out here"),
        (("",), None, "expected 1 to 512"),
        (("ülrich",), None, "characters of ASCII"),
        (("alice", "--password-file", "-"), "\n", "its first line is empty"),
        (("alice", "--password-file", "-"), "a\tb\n", "control characters"),
        (("alice", "--iterations", "100"), None, "expected 4096 to 16384"),
    ],
)
def test_what_could_never_log_in_is_refused(
    node: ClosedNode, words: tuple[str, ...], text: str | None, why: str
) -> None:
    ran = run("users", "create", *words, "--bootstrap", node.bootstrap, text=text)
    assert ran.exit_code == 2 and why in ran.stderr, ran.output


def test_no_write_goes_to_a_place_that_nobody_named() -> None:
    ran = run("users", "create", "alice")
    assert ran.exit_code in (2, 3) and ("nothing says where" in ran.stderr or "does not answer" in ran.stderr)


# Rules ------------------------------------------------------------------------------------------------------------
def rules_of_kafka(node: ClosedNode, name: str) -> set[tuple[str, str, str, str]]:
    """As a client of Kafka sees them."""
    wanted = AclBindingFilter(
        KafkaResource.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    found = admin.describe_acls(wanted).result(30)
    return {
        (one.restype.name, one.operation.name, one.permission_type.name, one.principal)
        for one in found
        if one.name == name
    }


def test_a_refused_login_says_that_the_environment_has_another_password(node: ClosedNode, tmp_path: Path) -> None:
    node.set_user("erin", "SCRAM-SHA-512")
    file = tmp_path / "erin.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in node.librdkafka("erin", "SCRAM-SHA-512").items()))
    words = ("--client-config", file, "users", "list", "--bootstrap", node.closed)
    ran = run(*words, STRATALOG_PASSWORD="of another user")
    assert ran.exit_code == 2 and "STRATALOG_PASSWORD of the environment replaces the password" in ran.stderr
    assert "of another user" not in ran.output
    assert "refuses the login" not in run(*words).stderr


def test_without_a_terminal_nothing_is_deleted_and_the_option_named(node: ClosedNode, place: tuple[str, str]) -> None:
    name = f"kept{place[0]}"
    done("users", "create", name, *place)
    done("acls", "add", "--allow-principal", f"User:{name}", "--producer", "--topic", name, *place)
    for command, words in (("users delete", (name,)), ("acls remove", ("--topic", name))):
        ran = run(*command.split(), *words, *place)
        assert ran.exit_code == 2 and "add --yes to" in ran.stderr, ran.output
    assert name in {one["user"] for one in listed("users", "list", *place)}
    assert listed("acls", "list", "--topic", name, *place)


def test_a_consumer_gets_what_kafka_acls_gives_it(node: ClosedNode, place: tuple[str, str]) -> None:
    topic, user = f"orders{place[0]}", f"User:reader{place[0]}"
    words = ("--allow-principal", user, "--consumer", "--topic", topic, "--group", topic)
    done("acls", "add", *words, *place)
    expected = {
        ("TOPIC", "READ", "ALLOW", user),
        ("TOPIC", "DESCRIBE", "ALLOW", user),
        ("GROUP", "READ", "ALLOW", user),
    }
    assert rules_of_kafka(node, topic) == expected
    done("acls", "add", *words, *place)  # again: they are there
    assert len(listed("acls", "list", "--principal", user, *place)) == 3

    done("acls", "remove", *words, "--yes", *place)
    assert listed("acls", "list", "--principal", user, *place) == []
    gone = run("acls", "remove", *words, "--yes", *place)
    assert gone.exit_code == 2 and "no such rules" in gone.stderr


def test_rules_that_apply_to_a_topic_are_listed_with_those_of_its_prefix(
    node: ClosedNode, place: tuple[str, str]
) -> None:
    user = f"User:p{place[0]}"
    topic = f"pay{place[0]}-eu"
    prefixed = ("--topic", f"pay{place[0]}", "--resource-pattern-type", "prefixed")
    done("acls", "add", "--deny-principal", user, "--operation", "delete", "--deny-host", "10.0.0.1", *prefixed, *place)
    found = listed("acls", "list", "--topic", topic, "--principal", user, *place)
    assert [(one["pattern_type"], one["host"], one["operation"], one["permission"]) for one in found] == [
        ("PREFIXED", "10.0.0.1", "DELETE", "DENY")
    ]
    assert listed("acls", "list", "--topic", topic, "--resource-pattern-type", "literal", *place) == []
    removed = json.loads(done("acls", "remove", *prefixed, "--yes", "-o", "json", *place))
    assert removed == found


def test_a_removal_asks_and_does_nothing_without_a_terminal(node: ClosedNode, place: tuple[str, str]) -> None:
    topic = f"asked{place[0]}"
    done("acls", "add", "--allow-principal", "User:a", "--topic", topic, *place)
    ran = run("acls", "remove", "--topic", topic, *place)
    assert ran.exit_code == 2 and f"remove ALLOW User:a ALL of TOPIC {topic}" in ran.stderr
    assert len(listed("acls", "list", "--topic", topic, *place)) == 1


def test_a_rule_about_names_that_nothing_has_is_kept_with_a_hint(node: ClosedNode) -> None:
    place = ("--bootstrap", node.bootstrap)
    words = ("acls", "add", "--allow-principal", "User:alcie", "--consumer", "--topic", "no-topic", "--group", "g")
    ran = run(*words, *place)
    assert ran.exit_code == 0 and "3 rules kept" in ran.stdout
    assert "User:alcie has no password here" in ran.stderr and "there is no topic no-topic yet" in ran.stderr
    done("users", "create", "alcie", *place)
    named = run("acls", "add", "--allow-principal", "User:alcie", "--operation", "read", "--topic", "*", *place)
    assert "note:" not in named.stderr


def test_the_rules_that_stay_behind_a_deleted_user_are_named(node: ClosedNode, place: tuple[str, str]) -> None:
    name = f"gone{place[0]}"
    done("users", "create", name, *place)
    done("acls", "add", "--allow-principal", f"User:{name}", "--operation", "read", "--topic", name, *place)
    asked = run("users", "delete", name, *place)
    assert asked.exit_code == 2 and "1 rule about it would stay" in asked.stderr
    ran = run("users", "delete", name, "--yes", *place)
    assert f"ALLOW User:{name} READ of TOPIC {name}" in ran.stderr and "connections.max.reauth.ms" in ran.stderr
    assert len(listed("acls", "list", "--principal", f"User:{name}", *place)) == 1


@pytest.mark.parametrize("words", ["topics list", "status", "nodes list", "users list", "acls list"])
def test_a_login_that_a_command_would_not_use_is_refused(node: ClosedNode, tmp_path: Path, words: str) -> None:
    """It would show what the token may see, and not what this login may."""
    file = tmp_path / "login"
    file.write_text("security.protocol=PLAINTEXT\n")
    meta = f"http://{node.settings['meta.listen']}"
    place = ("--meta", meta) if words.split()[0] in ("nodes", "users", "acls") else ("--admin", node.admin)
    ran = run("--client-config", file, *words.split(), *place)
    assert ran.exit_code == 2 and f"`{words}` asks an admin address or the meta service" in ran.stderr, ran.output
    assert run(*words.split(), *place, STRATALOG_CLIENT_CONFIG=str(file)).exit_code == 0


def test_names_of_others_do_not_steer_the_terminal(node: ClosedNode, place: tuple[str, str]) -> None:
    topic = f"evil{place[0]}\x1b[2J"
    shown = done("acls", "add", "--allow-principal", "User:\x1b[31m", "--topic", topic, *place)
    assert "\x1b" not in shown
    done("acls", "remove", "--topic", topic, "--yes", *place)


def test_a_node_without_an_authorizer_says_which_setting_it_lacks(tmp_path: Path) -> None:
    with ClosedNode(tmp_path) as node:
        ran = run("acls", "list", "--bootstrap", node.bootstrap)
        assert ran.exit_code == 2 and "authorizer.class.name=stratalog" in ran.stderr
