"""`stratalog produce TOPIC FILE`: the error says what a path is that is not a file; a pipe is accepted."""

from __future__ import annotations

import os
from pathlib import Path

from typer.testing import CliRunner

from stratalog_cli.entry import build_app


def produce(path: Path) -> tuple[int, str]:
    """Produces to an address where nothing listens, which an accepted file gets as far as."""
    ran = CliRunner().invoke(build_app(("produce",)), ["produce", "t", str(path), "--bootstrap", "127.0.0.1:1"])
    return ran.exit_code, ran.output


def test_a_directory_is_distinguished_from_a_file_that_is_not_there(tmp_path: Path) -> None:
    code, told = produce(tmp_path)
    assert code == 2 and "is a directory" in told
    code, told = produce(tmp_path / "none")
    assert code == 2 and "there is no such file" in told


def test_a_pipe_is_read_as_a_file(tmp_path: Path) -> None:
    """As the shell makes one of `<(command)`."""
    os.mkfifo(tmp_path / "pipe")
    code, told = produce(tmp_path / "pipe")
    assert code == 3 and "does not answer" in told
