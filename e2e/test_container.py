"""One node in a container by docker compose, as the README starts it: a client of this machine writes and reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog_e2e.images import build_product
from stratalog_e2e.surroundings import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def compose_command() -> list[str] | None:
    """`docker compose`, or its older form as a program of its own."""
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[list[str]]:
    """The command, for a project of this test's own."""
    words = compose_command()
    if words is None:
        pytest.skip("no docker compose")
    subprocess.run(["docker", "tag", build_product(), "stratalog:0.1.0"], check=True)
    words = [*words, "-p", f"readme-{os.getpid()}", "-f", str(REPOSITORY / "deploy" / "compose.yaml")]
    try:
        yield words
    finally:
        subprocess.run([*words, "down", "--volumes", "--timeout", "30"], check=True, capture_output=True)


@pytest.mark.timeout(900)
def test_the_first_example_of_the_readme_runs_against_the_container(compose: list[str]) -> None:
    subprocess.run([*compose, "up", "--detach", "--no-build"], check=True, capture_output=True)
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 3, ran.stdout
    stopped = subprocess.run([*compose, "stop"], check=False, capture_output=True, text=True)
    assert stopped.returncode == 0, stopped.stderr
    logs = subprocess.run([*compose, "logs"], check=True, capture_output=True, text=True).stdout
    assert "Traceback" not in logs, logs
