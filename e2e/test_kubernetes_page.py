"""docs/kubernetes.md, followed to the letter: what a platform engineer types works, in order."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog_e2e.evidence import keep
from stratalog_e2e.images import load
from stratalog_e2e.install import Operator
from stratalog_e2e.place import remove_volumes
from stratalog_e2e.surroundings import REPOSITORY, kind_name
from support.docs_commands import DocumentedCommand, commands_of

PAGE = REPOSITORY / "docs" / "kubernetes.md"
OURS = "<!-- commands: skip, on a cluster: e2e/test_kubernetes_page.py -->\n"
NAMESPACE = "demo"
IMAGE = "stratalog:0.1.0"
NODE_PORT = 30092


def commands() -> list[DocumentedCommand]:
    """Those that other tests leave to this one."""
    return commands_of(PAGE.read_text(encoding="utf-8").replace(OURS, "\n"))


@pytest.fixture
def reader(operator: Operator, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment after section 1 of the page: an image of that name, and a kubeconfig."""
    name = kind_name(operator.kube)
    if name is None:
        pytest.skip("the page is about a cluster of kind's")
    if shutil.which("kcat") is None:
        pytest.skip("no kcat in PATH")
    subprocess.run(["docker", "tag", operator.images.product, IMAGE], check=True, timeout=60)
    load(IMAGE, name)
    kubeconfig = tmp_path / "kubeconfig"
    shutil.copy(operator.kube.kubeconfig, kubeconfig)
    yield {**os.environ, "KUBECONFIG": str(kubeconfig)}
    volumes = [
        one["metadata"]["name"]
        for one in operator.kube.list("persistentvolumes")
        if one["spec"].get("claimRef", {}).get("namespace") == NAMESPACE
    ]
    operator.kube.delete("namespace", NAMESPACE)
    remove_volumes(operator.kube, volumes)
    operator.install()


def test_what_the_page_says_works(reader: dict[str, str], operator: Operator) -> None:
    if not _leads_here(operator):
        pytest.skip(f"the cluster was not made from deploy/examples/kind.yaml: port {NODE_PORT} does not lead to it")
    told = commands()
    assert len(told) > 20
    for command in told:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command.text],
            cwd=REPOSITORY,
            env=reader,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=700,
            check=False,
        )
        print(f"$ {command.text}\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
        if done.returncode:
            keep(operator.kube, NAMESPACE, REPOSITORY / "build" / "e2e" / "page")
        assert done.returncode == 0, f"{PAGE.name}:{command.line}: exit {done.returncode}: {done.stderr[-2000:]}"


def _leads_here(operator: Operator) -> bool:
    """Whether the node port reaches this machine. Docker listens on forwarded ports even if nothing answers behind
    them."""
    with socket.socket() as tried:
        tried.settimeout(5)
        return tried.connect_ex(("127.0.0.1", NODE_PORT)) == 0
