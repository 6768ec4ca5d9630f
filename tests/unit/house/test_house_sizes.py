"""Files and functions stay small enough to be read in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

from support.source_tree import PRODUCT_ROOTS, python_files, relative

FILE_LIMIT = 800
FUNCTION_LIMIT = 70
TEST_FUNCTION_LIMIT = 120

# Why a function may be longer than a screen.
LONG_FUNCTIONS: dict[str, str] = {}


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _functions(path: Path) -> list[tuple[str, int]]:
    """Every function of a file as (file:name, lines), its docstring and decorators not counted."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
            size = (node.end_lineno or node.lineno) - body[0].lineno + 1
            found.append((f"{relative(path)}:{node.name}", size))
    return found


def test_no_file_is_longer_than_a_sitting() -> None:
    """Length below the limit is a matter of judgement: one subject per file."""
    too_long = {relative(path): _lines(path) for path in python_files() if _lines(path) > FILE_LIMIT}
    assert not too_long, f"over {FILE_LIMIT} lines; which second subject hides in it? {too_long}"


def test_a_function_fits_a_screen() -> None:
    sizes = dict(pair for path in python_files(PRODUCT_ROOTS) for pair in _functions(path))
    long = {name for name, size in sizes.items() if size > FUNCTION_LIMIT}
    assert long == set(LONG_FUNCTIONS), (
        f"over {FUNCTION_LIMIT} lines; cut it, or say why in LONG_FUNCTIONS: "
        f"{ {name: sizes.get(name) for name in long ^ set(LONG_FUNCTIONS)} }"
    )


def test_a_test_reads_as_a_short_story() -> None:
    sizes = dict(pair for path in python_files(("tests", "bench", "tools")) for pair in _functions(path))
    long = {name: size for name, size in sizes.items() if size > TEST_FUNCTION_LIMIT}
    assert not long, f"over {TEST_FUNCTION_LIMIT} lines: {long}"
