"""What `make test` leaves out is there, and CI runs it."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.source_tree import python_files, relative
from support.thorough import DIRECTORIES, FILES, is_thorough

REPOSITORY = Path(__file__).resolve().parents[3]
NEW_EACH_TIME = frozenset(
    {
        "time",
        "time_ns",
        "monotonic",
        "now",
        "today",
        "uuid1",
        "uuid4",
        "urandom",
        "token_hex",
        "token_bytes",
        "free_port",
    }
)
"""Functions that no two processes get the same from."""


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


def chosen_anew(source: str) -> Iterator[int]:
    """Lines of parameters of tests that are other ones in each process."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith((".parametrize", "pytest.param")):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in NEW_EACH_TIME:
                yield call.lineno


def test_each_process_that_shares_the_tests_finds_the_same_ones() -> None:
    """Otherwise none of them runs: workers compare the names, which have the parameters."""
    assert list(chosen_anew('@pytest.mark.parametrize("at", [1, time.time() + 5])\ndef test_a(at): ...')) == [1]
    found = {
        relative(path): lines
        for path in python_files(("tests", "e2e"))
        if "parametrize" in (source := path.read_text(encoding="utf-8")) and (lines := list(chosen_anew(source)))
    }
    assert found == {}
