"""What docs/secure-a-listener.md says about the settings of clients is what the tests of these clients use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from support.client_programs import PROGRAMS, Login, java_settings
from support.closed_node import ClosedNode

USER, PASSWORD, CA = "alice", "secret", "ca.crt"


def on_the_page(repository: Path, client: str) -> list[str]:
    page = (repository / "docs" / "secure-a-listener.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {client}")]
    return re.findall(r"`([^`]+)`", row)


def settings_on_the_page(repository: Path, client: str) -> dict[str, str]:
    codes = [code.partition("=") for code in on_the_page(repository, client) if re.match(r"[a-z_.]+=", code)]
    return {name: value for name, _, value in codes}


def test_the_settings_of_java(repository: Path, tmp_path: Path) -> None:
    used = java_settings(Login("", CA, "SCRAM-SHA-512", USER, PASSWORD), tmp_path)
    del used["bootstrap.servers"]
    assert settings_on_the_page(repository, "Java") == used


class Described(ClosedNode):
    """Its settings of clients, without a node."""

    def __init__(self) -> None:
        self.ports = 1, 2, 3

    @property
    def ca(self) -> str:
        return CA


@pytest.mark.parametrize(("client", "made_by"), [("librdkafka", "librdkafka"), ("kafka-python", "kafka_python")])
def test_the_settings_of_python_clients_and_librdkafka(repository: Path, client: str, made_by: str) -> None:
    used = cast(dict[str, Any], getattr(Described(), made_by)(USER, "SCRAM-SHA-512"))
    told = settings_on_the_page(repository, client)
    assert set(told) == set(used) - {"bootstrap.servers", "bootstrap_servers"}
    without_password = [name for name in told if "password" not in name]
    assert [told[name] for name in without_password] == [used[name] for name in without_password]


@pytest.mark.parametrize(("client", "source"), [("franz-go", "franz-go/main.go"), ("KafkaJS", "kafkajs/client.js")])
def test_the_code_of_other_clients(repository: Path, client: str, source: str) -> None:
    program = (repository / PROGRAMS / source).read_text(encoding="utf-8")
    codes = on_the_page(repository, client)
    assert len(codes) >= 3
    assert [code for code in codes if code not in program] == []
