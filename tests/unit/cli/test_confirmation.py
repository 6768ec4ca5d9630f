"""What cannot be undone is asked on a terminal, and refused without one: the same for every command that asks."""

from __future__ import annotations

import ast
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from stratalog_cli.entry import build_app
from support.node_process import NodeProcess
from support.source_tree import PRODUCT_ROOTS, REPOSITORY, python_files, relative

APP = build_app()

COMMAND = str(Path(sys.executable).with_name("stratalog"))
ASKING = {
    "topics delete": ("kept --admin {admin}", "delete topic kept with 2 shards"),
    "topics trim": ("kept --to-latest --bootstrap {bootstrap}", "delete 1 offset in 1 shard of topic kept"),
    "groups delete": ("readers --bootstrap {bootstrap}", "delete group readers with 1 committed offset"),
    "groups delete-offsets": (
        "readers --topic kept --bootstrap {bootstrap}",
        "delete 1 committed offset of group readers",
    ),
}
"""Command that has --yes -> what it is run with, and what it says that it would do."""
SHOWING = ("topics trim",)
"""Those that show what there is before they ask."""
ELSEWHERE = {
    "recover": "tests/unit/cli/test_recover.py",
    "topics restore": "tests/clients/test_storage_classes.py",
    "users delete": "tests/unit/cli/security/test_users_and_acls.py",
    "acls remove": "tests/unit/cli/security/test_users_and_acls.py",
    "quotas remove": "tests/unit/cli/security/test_quotas_command.py",
}
"""Those that need more than a usual node: records that are lost, a bucket with archives, an authorizer."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("asked") / "data", None, {}) as running:
        made = CliRunner().invoke(APP, ["topics", "create", "kept", "--shards", "2", "--admin", running.admin])
        assert made.exit_code == 0, made.output
        producer = Producer({"bootstrap.servers": running.bootstrap})
        producer.produce("kept", b"one", partition=0)
        assert producer.flush(30) == 0
        reader = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "readers"})
        reader.commit(offsets=[TopicPartition("kept", 0, 1)], asynchronous=False)
        reader.close()
        yield running


def commands_with_yes() -> set[str]:
    found: set[str] = set()

    def walk(command: Any, name: str) -> None:
        for word, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {word}".strip())
        if any("--yes" in option.opts for option in command.params):
            found.add(name)

    walk(typer.main.get_command(APP), "")
    return found


def words_of(node: NodeProcess, command: str) -> tuple[list[str], str]:
    arguments, action = ASKING[command]
    return [*command.split(), *arguments.format(admin=node.admin, bootstrap=node.bootstrap).split()], action


def is_there(node: NodeProcess) -> bool:
    """The topic, its record, and what the group has committed."""
    reader = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "readers"})
    try:
        (committed,) = reader.committed([TopicPartition("kept", 0)], timeout=30)
        return bool(committed.offset == 1 and reader.get_watermark_offsets(TopicPartition("kept", 0), 30) == (0, 1))
    finally:
        reader.close()


def test_this_file_knows_every_command_that_asks() -> None:
    assert commands_with_yes() == set(ASKING) | set(ELSEWHERE)
    for command, file in ELSEWHERE.items():
        told = (REPOSITORY / file).read_text(encoding="utf-8")
        assert command in told and "add --yes to" in told, f"{file} does not try {command} without --yes"


def test_commands_ask_through_one_function() -> None:
    asking = {
        relative(path)
        for path in python_files(PRODUCT_ROOTS)
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("typer.confirm", "typer.prompt", "input")
    }
    assert asking == {"cli/stratalog_cli/terminal/confirmation.py"}


@pytest.mark.parametrize("command", sorted(ASKING))
@pytest.mark.parametrize("answer", ["", "y\n"])
def test_without_a_terminal_it_is_refused_with_what_it_would_do_and_the_option(
    node: NodeProcess, command: str, answer: str
) -> None:
    words, action = words_of(node, command)

    ran = CliRunner().invoke(APP, words, input=answer)

    assert ran.exit_code == 2 and bool(ran.stdout) == (command in SHOWING)
    assert action in ran.stderr and "--yes" in ran.stderr and "nothing was done" in ran.stderr
    assert "Aborted" not in ran.output and "[y/N]" not in ran.output
    assert is_there(node)


@pytest.mark.parametrize("command", sorted(ASKING))
@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"\x04"], ids=["no", "return", "end-of-file"])
def test_on_a_terminal_it_asks_and_no_is_a_refusal(node: NodeProcess, command: str, answer: bytes) -> None:
    words, action = words_of(node, command)
    ours, theirs = pty.openpty()
    os.write(ours, answer)

    ran = subprocess.run([COMMAND, *words], stdin=theirs, capture_output=True, text=True)

    os.close(ours)
    os.close(theirs)
    assert ran.returncode == 2, ran
    assert f"{action[0].upper()}{action[1:]}" in ran.stderr and "[y/N]" in ran.stderr
    assert ran.stderr.endswith("stratalog: not confirmed, and nothing was done\n") and "Aborted" not in ran.stderr
    assert is_there(node)
