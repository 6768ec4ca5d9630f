"""Plain English: log lines are sentences."""

from __future__ import annotations

import ast
import re

from support.source_tree import PRODUCT_ROOTS, python_files, relative

LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
IDENTIFIER = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")


def logged() -> list[tuple[str, str]]:
    """(where, the first argument) of each call of a logger whose first argument is a text."""
    found = []
    for path in python_files(PRODUCT_ROOTS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=level),
                    args=[ast.Constant(value=str(text)), *_],
                ) if level in LEVELS:
                    found.append((f"{relative(path)}:{node.lineno}", text))
    return found


def test_log_lines_are_sentences_and_no_identifiers() -> None:
    lines = logged()
    assert len(lines) > 100
    assert not [(where, text) for where, text in lines if IDENTIFIER.fullmatch(text)]
