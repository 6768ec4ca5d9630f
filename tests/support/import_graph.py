"""The imports of each file, for the tests that check the layers.

Every import statement counts the same: at the top of a module, inside a function, and for the type checker alone. A
name taken from a package counts as its submodule where there is one of that name. `import_module` is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from support.source_tree import PRODUCT_ROOTS, python_files, relative

Graph = Mapping[str, frozenset[str]]
"""Module to the modules of the same tree that it imports."""


@cache
def product_graph() -> Graph:
    """The whole product."""
    return graph_of({_module(relative(path)): path.read_text("utf-8") for path in python_files(PRODUCT_ROOTS)})


def imported_names(roots: tuple[str, ...]) -> dict[str, set[str]]:
    """Of each module below these folders the dotted names that it imports, whoever they belong to."""
    found = {}
    for path in python_files(roots):
        module = _module(relative(path))
        tree = ast.parse(path.read_text("utf-8"))
        found[module] = set(_names(tree, module.removesuffix(".__init__"), is_package=module.endswith(".__init__")))
    return found


def graph_of(sources: Mapping[str, str]) -> Graph:
    """Of sources by the names of their modules. A package is named as one: `a.b.__init__`."""
    packages = {name.removesuffix(".__init__") for name in sources if name.endswith(".__init__")}
    modules = packages | {name for name in sources if not name.endswith(".__init__")}
    graph = {}
    for name, source in sources.items():
        module = name.removesuffix(".__init__")
        named = _names(ast.parse(source), module, is_package=module in packages)
        found = {_owner(one, modules) for one in named}
        graph[module] = frozenset(found & modules - {module})
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Import circles: sorted groups of modules that all reach each other.

    Tarjan's strongly connected components.
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    done: set[str] = set()
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
            if other not in done:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            done.update(group)
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return sorted(found)


def one_way_round(graph: Graph, circle: list[str]) -> list[str]:
    """The shortest way from the circle's first module back to it, for the message of a test."""
    ways = [[circle[0]]]
    for way in ways:
        for other in sorted(graph[way[-1]] & set(circle)):
            if other == circle[0]:
                return [*way, other]
            if other not in way:
                ways.append([*way, other])
    raise AssertionError(f"no circle: {circle}")


def _module(path: str) -> str:
    return path.removesuffix(".py").partition("/")[2].replace("/", ".")


def _owner(name: str, modules: set[str]) -> str:
    """The module that a dotted name is or belongs to: of `a.b.C` it is `a.b`."""
    return name if name in modules else name.rpartition(".")[0]


def _names(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=origin, names=names, level=level):
                start = _package(module, level, is_package=is_package) if level else ""
                full = ".".join(part for part in (start, origin) if part)
                yield from (f"{full}.{alias.name}" for alias in names)
            case _:
                pass


def _package(module: str, level: int, *, is_package: bool) -> str:
    parts = module.split(".")
    return ".".join(parts[: len(parts) - level + is_package])
