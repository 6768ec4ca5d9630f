"""Rooms: a package's `__all__` lists the modules that others may import, and no other one is imported.

A room is a package whose `__all__` is a tuple of modules. (One that lists names instead is a list.) Tests look into
every module, and so do the bugs that the simulator plants in the product.
"""

from __future__ import annotations

import ast
from functools import cache

from support.import_graph import imported_names
from support.source_tree import SOURCE_ROOTS, python_files, relative

FILES_OF_A_ROOM = 25


@cache
def listed_modules() -> dict[str, frozenset[str]]:
    """Each room to the modules that its `__all__` lists."""
    found = {}
    for path in python_files(SOURCE_ROOTS):
        if path.name != "__init__.py":
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            if ast.unparse(node.targets[0]) == "__all__":
                room = relative(path).partition("/")[2].removesuffix("/__init__.py").replace("/", ".")
                found[room] = frozenset(ast.literal_eval(node.value))
    return found


@cache
def entered() -> dict[str, set[str]]:
    """Each room to its modules that are imported, or named to be imported, from outside of it."""
    found: dict[str, set[str]] = {room: set() for room in listed_modules()}
    named = imported_names((*SOURCE_ROOTS, "bench", "e2e", "tools"))
    for module, names in named.items():
        if module.startswith("stratalog_sim.bugs."):
            continue
        for room in listed_modules():
            if not f"{module}.".startswith(f"{room}."):
                found[room] |= {
                    name.removeprefix(f"{room}.").partition(".")[0] for name in names if name.startswith(f"{room}.")
                }
    for path in python_files(SOURCE_ROOTS):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                room, _, name = node.value.rpartition(".")
                if room in found:
                    found[room].add(name)
    return found


def test_only_listed_modules_of_a_room_are_imported() -> None:
    wrong = {
        room: sorted(modules - listed_modules()[room])
        for room, modules in entered().items()
        if modules - listed_modules()[room]
    }
    assert not wrong, f"list the module in its room's __all__, or use one that is listed: {wrong}"


def test_no_room_lists_a_module_that_others_do_not_use() -> None:
    idle = {
        room: sorted(listed_modules()[room] - modules)
        for room, modules in entered().items()
        if listed_modules()[room] - modules
    }
    assert not idle, f"only the room itself uses it: {idle}"


def test_a_room_holds_no_more_files_than_a_reader_can_survey() -> None:
    sizes = {
        room: len([p for p in python_files(SOURCE_ROOTS) if _room_of(relative(p)) == room]) for room in listed_modules()
    }
    assert {room: size for room, size in sizes.items() if size > FILES_OF_A_ROOM} == {}


def _room_of(path: str) -> str:
    return path.partition("/")[2].rpartition("/")[0].replace("/", ".")
