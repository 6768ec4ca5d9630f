"""Only a machine changes its own state: shells, the simulator and the rigs of tests send it events or call its methods.

The test knows a machine by the names under which the code holds it: what is annotated with its class, made by it, or
returned as it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from support.source_tree import python_files, relative

MACHINES = "core/stratalog/machines"
CHECKED = (
    *("core/stratalog", "storage_node", "meta_service", "operator", "pipeline", "cli", "sim"),
    *("tests/support", "tests/property", "tests/unit/machines", "tests/unit/shards", "tests/unit/replication"),
)
ALLOWED = {
    # It makes states equal that differ only in times at which nothing happens any more.
    ("sim/stratalog_sim/small/small_world.py", "follower._paused_until_ms"),
    ("sim/stratalog_sim/small/small_world.py", "follower._pause_ms"),
    # It puts a check in the place of the class's field.
    ("tests/support/legal_transitions.py", "machine.life"),
}


@cache
def trees() -> dict[str, ast.Module]:
    return {relative(path): ast.parse(path.read_text(encoding="utf-8")) for path in python_files(CHECKED)}


def is_machine(path: str) -> bool:
    return path.startswith(f"{MACHINES}/")


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


@cache
def machines() -> dict[str, set[str]]:
    """Class -> the fields that its methods assign, of each class that changes after it was made."""
    found: dict[str, set[str]] = {}
    for tree in [tree for path, tree in trees().items() if is_machine(path)]:
        for made in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            methods = [one for one in made.body if isinstance(one, ast.FunctionDef)]
            fields = {one.name: {node.attr for node in stored(one) if is_of_self(node)} for one in methods}
            if any(names for method, names in fields.items() if method != "__init__"):
                found[made.name] = set().union(*fields.values())
    return found


def last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return last_name(inner)
        case _:
            return ""


def classes_in(annotation: ast.AST | None) -> set[str]:
    if annotation is None:
        return set()
    return {last_name(node) for node in ast.walk(annotation)} & machines().keys()


@cache
def holders() -> dict[str, set[str]]:
    """Name of a variable, an attribute or a function -> the machines that it holds or returns."""
    found: dict[str, set[str]] = defaultdict(set)
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.AnnAssign(target=target, annotation=annotation):
                    found[last_name(target)] |= classes_in(annotation)
                case ast.arg(arg=name, annotation=annotation):
                    found[name] |= classes_in(annotation)
                case ast.FunctionDef(name=name, returns=returns) | ast.AsyncFunctionDef(name=name, returns=returns):
                    found[name] |= classes_in(returns)
                case ast.Assign(targets=targets, value=ast.Call(func=called)):
                    for target in targets:
                        found[last_name(target)] |= {last_name(called)} & machines().keys()
                case _:
                    pass
    return found


def assigned_from_outside(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and text of each assignment to a field of a machine."""
    held_as = holders()
    return [
        (node.lineno, ast.unparse(node))
        for node in stored(tree)
        if not is_of_self(node)
        and any(node.attr in machines()[machine] for machine in held_as.get(last_name(node.value), ()))
    ]


def test_only_a_machine_changes_its_state() -> None:
    wrong = [
        f"{path}:{line}: {what}"
        for path, tree in trees().items()
        if not is_machine(path)
        for line, what in assigned_from_outside(tree)
        if (path, what) not in ALLOWED
    ]
    assert not wrong, "send the machine an event, or give it a method: " + "; ".join(wrong)


def test_the_check_sees_an_assignment_from_outside() -> None:
    source = "shard.chain.high_watermark = 5\ndel replica.follower.life\nchain.unknown = 1\nother.high_watermark = 5"
    assert [what for _, what in assigned_from_outside(ast.parse(source))] == [
        "shard.chain.high_watermark",
        "replica.follower.life",
    ]
