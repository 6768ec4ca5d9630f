"""Rooms that decide or encode reach nothing outside: no clock, no chance, no file, no socket, no log.

import-linter checks the same for imports through other modules; this test sees built-ins and lazy imports too.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from support.source_tree import PURE_ROOMS, python_files, relative

FORBIDDEN_MODULES = {
    *("asyncio", "time", "random", "secrets", "os", "socket", "selectors", "ssl", "logging", "threading", "subprocess"),
    *("pathlib", "shutil", "tempfile", "multiprocessing", "concurrent", "signal", "sys"),
    *("structlog", "prometheus_client", "obstore", "boto3", "aiohttp", "rocksdict", "uvloop"),
}
FORBIDDEN_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint", "uuid4", "uuid1"})
# A pure room may take a moment as an argument; asking for one is another matter.
FORBIDDEN_METHODS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("uuid", "uuid4"),
    ("uuid", "uuid1"),
}


def impurities(source: str) -> list[str]:
    """What a pure module must not contain, as `line: what`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [f"{node.lineno}: import {n.name}" for n in names if n.name.split(".")[0] in FORBIDDEN_MODULES]
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in FORBIDDEN_MODULES:
                found.append(f"{node.lineno}: from {module} import")
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                found.append(f"{node.lineno}: {name}()")
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Name(id=owner))) if (
                owner,
                method,
            ) in FORBIDDEN_METHODS:
                found.append(f"{node.lineno}: {owner}.{method}()")
            case ast.AsyncFunctionDef() | ast.Await():
                found.append(f"{node.lineno}: waits")
            case _:
                pass
    return found


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_a_pure_room_reaches_nothing_outside(room: str) -> None:
    found = {relative(path): impurities(path.read_text(encoding="utf-8")) for path in python_files((room,))}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "source",
    [
        "import os.path",
        "from time import monotonic",
        "def f():\n    import random",
        "open('x')",
        "datetime.now()",
        "async def f(): ...",
    ],
)
def test_the_check_itself_sees_an_impurity(source: str) -> None:
    assert impurities(source)


def test_the_check_lets_plain_code_pass() -> None:
    assert not impurities(
        "from __future__ import annotations\nimport struct\nfrom crc32c import crc32c\nx = struct.pack('>i', 1)"
    )


@cache
def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(
    ("module", "importers"),
    [
        # Stored bytes belong to formats/, bytes of the wire to kafka/. serve/ reads the size in front of a frame, and
        # groups/placement.py hashes a name as Java does.
        (
            "struct",
            (
                "core/stratalog/formats/",
                "core/stratalog/kafka/",
                "storage_node/stratalog_node/serve/connections/connection.py",
                "storage_node/stratalog_node/groups/placement.py",
            ),
        ),
        ("kio", ("core/stratalog/kafka/", "storage_node/stratalog_node/serve/", "storage_node/stratalog_node/groups/")),
        ("obstore", ("core/stratalog/objects/",)),
        ("boto3", ("core/stratalog/objects/",)),
        ("kubernetes", ("operator/stratalog_operator/kube/",)),
        ("kopf", ("operator/stratalog_operator/handlers.py",)),
        ("grpc", ("meta_service/stratalog_meta/stores/etcd/",)),
        ("google", ("meta_service/stratalog_meta/stores/etcd/",)),
        ("rocksdict", ("meta_service/stratalog_meta/stores/", "storage_node/stratalog_node/disk/")),
    ],
)
def test_a_library_is_imported_by_its_own_modules_only(module: str, importers: tuple[str, ...]) -> None:
    strangers = [
        relative(path)
        for path in python_files(("core", "storage_node", "meta_service", "cli", "operator"))
        if module in _imports(path) and not relative(path).startswith(importers)
    ]
    assert not strangers, f"{module} belongs behind {importers}"
