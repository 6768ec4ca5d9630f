"""What is compiled (decision 0028) can be: the modules are there, and no class of theirs has a child elsewhere."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from support.source_tree import PRODUCT_ROOTS, REPOSITORY, python_files, relative

Fields: TypeAlias = "dict[tuple[str, str], dict[str, str]]"
"""Module and class -> the fields of records, with their types as they are written."""

C_KEYWORDS = {
    "_real",
    "_imag",
    "_complex",
    "_label",
    "_const",
    "_inline",
    "_signed",
    "_volatile",
    "_extension",
    "_auto",
}
"""Behind the underscore that mypyc puts before an attribute they are words of the C compiler."""


def _hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_hook", REPOSITORY / "tools" / "build_hook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMPILED: set[Path] = set(_hook().compiled_files(REPOSITORY))


def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]


def test_no_class_that_is_interpreted_has_a_compiled_parent() -> None:
    """It would end the first request that makes one: "interpreted classes cannot inherit from compiled"."""
    parents = {node.name for path in COMPILED for node in _classes(path) if not _is_exception_or_protocol(node)}
    orphans = [
        f"{path.relative_to(REPOSITORY)}: {node.name}"
        for path in python_files(PRODUCT_ROOTS)
        if path not in COMPILED
        for node in _classes(path)
        if any(ast.unparse(base).split("[")[0].split(".")[-1] in parents for base in node.bases)
    ]
    assert not orphans, f"add the modules to tools/build_hook.py: {orphans}"


def _is_exception_or_protocol(node: ast.ClassDef) -> bool:
    """These are classes of the interpreter also where they are compiled."""
    return any(ast.unparse(base).split("[")[0] in {"Protocol", "StratalogError"} for base in node.bases)


def test_no_attribute_that_is_compiled_has_a_name_of_the_c_compiler() -> None:
    found = {
        f"{path.relative_to(REPOSITORY)}: {node.attr}"
        for path in COMPILED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in C_KEYWORDS
    }
    assert not found


def test_what_is_compiled_holds_nothing_that_mypyc_lacks() -> None:
    """Asynchronous generators; a `break` out of `try … finally` it tells by itself."""
    found = [
        f"{path.relative_to(REPOSITORY)}: {function.name}"
        for path in COMPILED
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.AsyncFunctionDef) and any(isinstance(node, ast.Yield) for node in _own(function))
    ]
    assert not found


def test_no_field_of_a_record_is_a_memoryview() -> None:
    """mypyc looks for its type where it is not: the import ends with a KeyError. A class of its own holds one."""
    found = [
        f"{path.relative_to(REPOSITORY)}: {made.name}.{ast.unparse(field.target)}"
        for path in COMPILED
        for made in _classes(path)
        if made.decorator_list or "NamedTuple" in map(ast.unparse, made.bases)
        for field in made.body
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) == "memoryview"
    ]
    assert not found


def test_no_class_that_is_compiled_is_made_without_its_init() -> None:
    """`Made.__new__(Made)` of a compiled class calls `__init__` without what it requires, and ends with a TypeError."""
    classes = {node.name for path in COMPILED for node in _classes(path)}
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {ast.unparse(node)}"
        for path in python_files(PRODUCT_ROOTS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr == "__new__"
        and (ast.unparse(node.value).split(".")[-1] in classes or (path in COMPILED and _is_of_its_own(node)))
    ]
    assert not found


def _is_of_its_own(made: ast.Attribute) -> bool:
    """`cls.__new__`, `type(self).__new__`, `object.__new__`: all but those of values of Python's own."""
    return ast.unparse(made.value) not in {"tuple", "int", "str", "bytes"}


def _own(function: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Its nodes, without those of functions inside it."""
    line: list[ast.AST] = list(function.body)
    while line:
        node = line.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            line += ast.iter_child_nodes(node)


def test_no_name_holds_faults_of_two_types() -> None:
    """mypyc gives a name one type in a function: a second `except … as error` would end with a TypeError."""
    found = []
    for path in COMPILED:
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            types: dict[str, set[str]] = {}
            for handler in ast.walk(function):
                if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type:
                    types.setdefault(handler.name, set()).add(ast.unparse(handler.type))
            found += [
                f"{path.relative_to(REPOSITORY)}: {function.name}: {name} is {sorted(several)}"
                for name, several in types.items()
                if len(several) > 1
            ]
    assert not found


def test_no_name_that_a_case_takes_has_two_types() -> None:
    """mypyc goes by what comes first, another `case` or a loop: the other would end with a TypeError."""
    fields: Fields = {
        (path.stem, made.name): {
            field.target.id: ast.unparse(field.annotation)
            for field in made.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        }
        for path in python_files(PRODUCT_ROOTS)
        for made in _classes(path)
    }
    found = []
    for path in COMPILED:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {
            alias.asname or alias.name: (node.module or "").split(".")[-1]
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            types: dict[str, set[str]] = {}
            for case in ast.walk(function):
                if isinstance(case, ast.MatchClass):
                    name = ast.unparse(case.cls).split(".")[-1]
                    for taken, kind in _taken(case, fields.get((modules.get(name, path.stem), name), {})):
                        types.setdefault(taken, set()).add(kind)
            for taken in _looped(function) & types.keys():
                types[taken].add("an item of a loop")
            found += [
                f"{path.relative_to(REPOSITORY)}: {function.name}: {name} is {sorted(several)}"
                for name, several in types.items()
                if len(several) > 1
            ]
    assert not found


def _taken(case: ast.MatchClass, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Names that the pattern takes, with their types: of `Appended(first)` that of the first field."""
    in_order = zip(known, case.patterns, strict=False)
    for field, pattern in [*in_order, *zip(case.kwd_attrs, case.kwd_patterns, strict=True)]:
        if isinstance(pattern, ast.MatchAs) and pattern.name and pattern.pattern is None:
            yield pattern.name, known.get(field, f"of {field}")


def _looped(function: ast.AST) -> set[str]:
    return {
        name.id
        for loop in ast.walk(function)
        if isinstance(loop, ast.For | ast.AsyncFor)
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name)
    }


MOST_NAMES = 8


def test_event_classes_are_imported_as_modules_where_many_are_used() -> None:
    """Compiled modules import names: each case of a `match` on `module.Class` costs 10 ns there."""
    long = {
        relative(path): f"{node.module}: {len(node.names)}"
        for path in python_files()
        if path not in COMPILED
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").endswith(("_events", ".table_commands", ".actions"))
        and len(node.names) > MOST_NAMES
    }
    assert not long, f"import the module, and write `module.Class`: {long}"
