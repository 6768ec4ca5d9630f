"""What the log says of each line by itself, no call says otherwise: whoever gathers the logs sorts lines by it."""

from __future__ import annotations

import ast

from support.source_tree import python_files, relative

_STAMPED = frozenset({"node", "room", "level", "time"})
_OF_NODES = ("storage_node/", "core/")


def _renamed(source: str) -> list[str]:
    """Calls of `log` that give a stamped field another value, as `line: field`."""
    return [
        f"{call.lineno}: {keyword.arg}"
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "log"
        for keyword in call.keywords
        if keyword.arg in _STAMPED
    ]


def test_no_line_of_a_node_names_another_as_its_own() -> None:
    found = {
        name: faults
        for path in python_files()
        if (name := relative(path)).startswith(_OF_NODES) and (faults := _renamed(path.read_text()))
    }
    assert not found, "another node is `peer`"


def test_a_renamed_field_is_found() -> None:
    assert _renamed("log.info('x', node=2, peer=3)\nlog.warning('y', error='z')") == ["1: node"]
