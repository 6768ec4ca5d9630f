"""What `make test` leaves out is there, and CI runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.thorough import DIRECTORIES, FILES, is_thorough

REPOSITORY = Path(__file__).resolve().parents[3]


def told(*variables: str) -> str:
    """What `make test` would run, whatever the arguments of the make that runs this test."""
    dry = ["make", "--no-print-directory", "-n", "-o", "setup", "test", *variables]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "SUITE", "MFLAGS", "ARGS"))
    }
    return subprocess.run(dry, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout


def test_whatever_is_left_out_exists() -> None:
    assert [name for name in (*FILES, *DIRECTORIES) if not (REPOSITORY / name).exists()] == []
    assert is_thorough(f"{DIRECTORIES[0]}/test_anything.py")
    assert not is_thorough("tests/unit/house/test_house_suites.py")


def test_only_make_test_alone_leaves_it_out() -> None:
    assert "not slow and not thorough" in told()
    assert "not thorough" not in told("SUITE=all")
    assert "not thorough" not in told("ARGS=tests/unit/shards/restart/test_healing.py")


def test_ci_runs_all_of_it() -> None:
    assert "test SUITE=all" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
