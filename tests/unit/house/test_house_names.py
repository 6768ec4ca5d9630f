"""Names that said too little do not come back: each has a plain word of the field."""

from __future__ import annotations

import ast
import re

import pytest

from support.source_tree import PRODUCT_ROOTS, SOURCE_ROOTS, python_files, relative

VAGUE = {
    re.compile(r"(^|_)LOOK_(.+_)?(S|MS|SECONDS)$|^_?look_s$"): "POLL_S, or TIMEOUT_S where it ends a wait",
    re.compile(r"(^|_)look_again$"): "retry, or what is done again",
}
"""Patterns of what may be called so no more, and what to call it."""
FORBIDDEN = {
    "look": "check, read, poll, or what is found",
    "looks": "checks, reads, passes",
    "take": "receive, add, allocate, handle",
    "tell": "report, notify, submit, handle, print",
    "mend": "repair, restore",
    "hear": "handle, receive",
    "heed": "apply, change",
    "stir": "mark_changed",
    "whence": "source",
    "door": "port, listener, guard, module",
    "desk": "handler, server",
}
"""Names of functions, methods and classes that say nothing about what is done, or are not the field's words."""
PROTOCOLS_OF_OTHERS = frozenset({"pipeline/stratalog_pipeline/jobs/tables/iceberg_store.py: tell"})
"""Methods that a library calls by their names."""
NAMED_ROOTS = (*PRODUCT_ROOTS, "tools", "bench", "e2e", "tests/support")


def forbidden_names(source: str) -> list[str]:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, definitions) and node.name.strip("_").lower() in FORBIDDEN
    ]


def vague_names(source: str) -> list[str]:
    """Every name that this source gives to something and that is vague, as `line: name: what to say instead`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case _:
                continue
        found += [f"{node.lineno}: {name}: {better}" for pattern, better in VAGUE.items() if pattern.search(name)]
    return found


def test_functions_and_classes_are_named_by_what_they_do() -> None:
    found = {
        f"{relative(path)}: {name}"
        for path in python_files(NAMED_ROOTS)
        for name in forbidden_names(path.read_text(encoding="utf-8"))
    }
    assert not found - PROTOCOLS_OF_OTHERS, f"use another word: {FORBIDDEN}"


def test_a_forbidden_name_is_found_with_and_without_underscores() -> None:
    assert forbidden_names("def _look(): ...\nclass Desk: ...\ndef look_up(): ...") == ["_look", "Desk"]


def test_no_name_of_ours_is_vague() -> None:
    files = python_files((*SOURCE_ROOTS, "tests", "tools", "bench", "e2e"))
    found = {relative(path): vague_names(path.read_text(encoding="utf-8")) for path in files}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    "source",
    [
        "_LOOK_S = 0.5",
        "LOOK_AGAIN_S: Final = 5.0",
        "_VOLUME_LOOK_MS = 20",
        "LOOK_SECONDS = 300.0",
        "self._look_s = 1",
        "def f(*, look_s: float): ...",
        "async def _look_again(self): ...",
    ],
)
def test_the_check_itself_sees_a_vague_name(source: str) -> None:
    assert len(vague_names(source)) == 1


def test_the_check_lets_plain_names_pass() -> None:
    assert not vague_names("_POLL_S = 1\nLOOKS_PER_LEASE = 8\npause_before_look_ms = 1\nself._look_again()")
