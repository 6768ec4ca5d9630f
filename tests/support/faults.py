"""Which tests cause the faults of docs/faults.md. `python -m support.faults KEY...`, in `tests/`, prints them.

Each row of the page begins with a key, and each test that causes the row's fault has the mark
`@pytest.mark.fault("key")`, or its module has `pytestmark = pytest.mark.fault("key")`. Both are read from the source,
without importing the tests.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.source_tree import REPOSITORY, python_files, relative

PAGE: Final = REPOSITORY / "docs" / "faults.md"
TEST_ROOTS: Final = ("tests", "e2e")
_HEAD: Final = "| key |"
_KEY: Final = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`")


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One row of the page; `key` is empty where the row does not begin with one."""

    key: str
    fault: str
    reaction: str


def rows() -> list[FaultRow]:
    """Raises: ValueError for a row that has not exactly three cells."""
    return [_row(line) for line in PAGE.read_text(encoding="utf-8").splitlines() if _is_row(line)]


def marked_tests(paths: Iterable[Path] | None = None) -> dict[str, list[str]]:
    """The names of the tests by key, as pytest writes them; for a marked module, its path."""
    found: dict[str, list[str]] = {}
    for path in python_files(TEST_ROOTS) if paths is None else paths:
        text = path.read_text(encoding="utf-8")
        if "mark.fault(" in text:
            for key, test in _marks(ast.parse(text), relative(path)):
                found.setdefault(key, []).append(test)
    return found


def _is_row(line: str) -> bool:
    return line.startswith("| ") and not line.startswith(_HEAD)


def _row(line: str) -> FaultRow:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    if len(cells) != 3:
        raise ValueError(f"a row of docs/faults.md has the cells `key` | fault | what happens, this one not: {line}")
    key = _KEY.fullmatch(cells[0])
    return FaultRow("" if key is None else key[1], cells[1], cells[2])


def _marks(module: ast.Module, path: str) -> Iterator[tuple[str, str]]:
    for node in module.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "pytestmark" for one in node.targets
        ):
            yield from ((key, path) for key in _keys(node.value))
    yield from _marks_of_tests(module.body, path)


def _marks_of_tests(body: Iterable[ast.stmt], place: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            test = f"{place}::{node.name}"
            yield from ((key, test) for decorator in node.decorator_list for key in _keys(decorator))
            if isinstance(node, ast.ClassDef):
                yield from _marks_of_tests(node.body, test)


def _keys(expression: ast.expr) -> Iterator[str]:
    """The keys in calls of `pytest.mark.fault` within a decorator or a list of marks."""
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="fault"), args=arguments):
                yield from (
                    one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )


def main(keys: list[str]) -> int:
    """Print the tests of each row named by `keys`; of all rows if none is named. Returns: 1 if a key has no row."""
    tests, known = marked_tests(), {row.key for row in rows()}
    for key in keys or sorted(known):
        print(f"{key}:" if key in known else f"{key}: docs/faults.md has no such row")
        for test in tests.get(key, ()):
            print(f"  {test}")
    return 0 if known.issuperset(keys) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
