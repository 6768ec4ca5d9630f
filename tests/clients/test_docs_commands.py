"""What the pages ask a reader to type works, in order, in an empty folder.

support/docs_commands.py explains how commands are found.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.cluster_ports import free_block, free_port
from support.docs_commands import DocumentedCommand, commands_of, pages_with_commands
from support.pipeline_extra import NO_PIPELINE
from support.source_tree import REPOSITORY, relative
from support.waiting import eventually_sync

# What the pages write -> told to be somewhere else while they are tested.
KAFKA_PORT, ADMIN_PORT, META_PORT = "9092", "9644", "9645"
BLOCK = re.compile(r"\b19(0\d\d)\b")
"""Ports of a cluster's block, as far as the pages write them out."""


class Reader:
    """A reader who types what a page says, in a folder of their own where .venv is what the make targets have made."""

    def __init__(self, folder: Path, *, names_nodes: bool) -> None:
        """`names_nodes`: the page says itself where commands go."""
        self.folder = folder
        (folder / ".venv").symlink_to(Path(sys.prefix))
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._ports = {port: free_port() for port in (KAFKA_PORT, ADMIN_PORT, META_PORT)}
        self._block = free_block()
        admin = {} if names_nodes else {"STRATALOG_ADMIN": f"127.0.0.1:{self._ports[ADMIN_PORT]}"}
        self._environment = (
            os.environ
            | admin
            | {
                "XDG_CONFIG_HOME": str(folder / "configuration"),
                "STRATALOG_METRICS_LISTEN": f"127.0.0.1:{self._ports[ADMIN_PORT]}",
                "COLUMNS": "160",
            }
        )

    def translated(self, text: str) -> str:
        for documented, actual in self._ports.items():
            text = re.sub(rf"(?<=[\w.]:){documented}\b", str(actual), text)
        return BLOCK.sub(lambda found: str(self._block + int(found[1])), text)

    def types(self, command: DocumentedCommand, page: str) -> None:
        where = f"{page}:{command.line}: $ {command.text}"
        if command.starts_a_node:
            self._starts_a_node(command, where)
            return
        if command.tells_whether_all_is_in_order:
            eventually_sync(lambda: self._ran(command, where).returncode == 0, timeout=30)
            return
        done = self._ran(command, where)
        told = f"{where}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert (done.returncode != 0) == command.must_fail, told

    def _ran(self, command: DocumentedCommand, where: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", self.translated(command.text)],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except subprocess.TimeoutExpired as stuck:
            said = b"\n".join(part for part in (stuck.stdout, stuck.stderr) if part).decode(errors="replace")
            pytest.fail(f"{where}\nnot done within {stuck.timeout} s:\n{said[-2000:]}")

    def _starts_a_node(self, command: DocumentedCommand, where: str) -> None:
        log = self.folder / f"node-{len(self._nodes)}.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                ["bash", "-c", f"exec {self.translated(command.text)}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._nodes.append(node)
        ready = "\nready bootstrap=" if "cluster" in command.text else "ready"
        eventually_sync(lambda: ready in log.read_text(errors="replace") or node.poll() is not None, timeout=60)
        assert node.poll() is None, f"{where}\nended with {node.returncode}:\n{log.read_text(errors='replace')[-2000:]}"

    def leaves(self) -> None:
        for node in self._nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)  # a cluster ends its parts
        for node in self._nodes:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait(10)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.fault("start-without-settings-probes")
@pytest.mark.timeout(400)  # some pages have twenty commands, each a process
@pytest.mark.parametrize("page", pages_with_commands(REPOSITORY), ids=relative)
def test_what_a_page_tells_to_type_works(page: Path, tmp_path: Path) -> None:
    commands = commands_of(page.read_text(encoding="utf-8"))
    needed = {command.program for command in commands}
    if missing := {program for program in needed if shutil.which(program) is None}:
        pytest.skip(f"{', '.join(sorted(missing))} is not installed here")
    if any(command.needs_pipeline for command in commands) and find_spec("fastavro") is None:
        pytest.skip(NO_PIPELINE)
    targets = make_targets()
    reader = Reader(tmp_path, names_nodes=any("context add" in command.text for command in commands))
    try:
        for command in commands:
            if command.make_target is not None:
                assert command.make_target in targets, f"{relative(page)}:{command.line}: no such target"
            else:
                reader.types(command, relative(page))
    finally:
        reader.leaves()
