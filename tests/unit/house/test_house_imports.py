"""Walls that no import may cross, be it inside a function or for the type checker alone. `make lint` runs this file.

import-linter keeps the layers of packages (pyproject.toml); here are the circles between files, and Kafka's place.
Neither has an exception.
"""

from __future__ import annotations

import pytest

from support.import_graph import circles, graph_of, imported_names, one_way_round, product_graph
from support.source_tree import PRODUCT_ROOTS, python_files, relative

SPEAKS_KAFKA = (
    "stratalog.kafka",
    "stratalog_node.serve",
    "stratalog_node.replication",
    "stratalog_node.volume",
    "stratalog_node.node",
    "stratalog.connect.listener",
    "stratalog.connect.missing_right",
    "stratalog_cli.security.rights_over_kafka",
    "stratalog_cli.groups.forget",
)
"""What may know the protocol: who encodes it, who answers or asks in it, who puts the node together, and the commands
that ask what librdkafka has no call for."""


def test_no_module_of_the_product_is_in_an_import_circle() -> None:
    graph = product_graph()
    found = [" -> ".join(one_way_round(graph, circle)) for circle in circles(graph)]
    assert not found, f"take apart what both sides need, or hand it in: {found}"


def test_below_the_requests_no_one_knows_the_protocol() -> None:
    """What a shard, a tier or a disk has to say it says in words of its own; `serve` makes Kafka's codes of them."""
    strangers = {
        module
        for module, imported in product_graph().items()
        if not _is_in(module, SPEAKS_KAFKA) and any(_is_in(other, ("stratalog.kafka",)) for other in imported)
    }
    assert not strangers, f"an outcome of the domain is wanted here, not the protocol: {sorted(strangers)}"


def test_nobody_imports_the_simulator() -> None:
    """Nor what tests share: the product must not know that it is being looked at."""
    strangers = {
        module: sorted(found)
        for module, found in imported_names(PRODUCT_ROOTS).items()
        if any(_is_in(name, ("stratalog_sim", "support")) for name in found)
    }
    assert not strangers


def test_small_worlds_of_the_simulator_know_machines_and_no_shell_of_a_node() -> None:
    """They try every history of the pure machines. The other worlds run the product's own processes."""
    allowed = ("stratalog_sim.small", "stratalog_sim.broken", "stratalog.machines", "stratalog.model")
    found = {
        f"{module}: {name}"
        for module, names in imported_names(("sim",)).items()
        for name in names
        if _is_in(module, ("stratalog_sim.small",))
        and name.startswith(("stratalog", "support"))
        and name != "stratalog_sim"
        and not _is_in(name, allowed)
    }
    assert not found


def test_no_module_of_the_simulator_is_in_an_import_circle() -> None:
    names = {path: relative(path).removeprefix("sim/").removesuffix(".py") for path in python_files(("sim",))}
    graph = graph_of({name.replace("/", "."): path.read_text("utf-8") for path, name in names.items()})
    found = [" -> ".join(one_way_round(graph, circle)) for circle in circles(graph)]
    assert not found, f"take apart what both sides need, or hand it in: {found}"


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return f"{module}.".startswith(tuple(f"{package}." for package in packages))


@pytest.mark.parametrize(
    "closing",
    [
        "import a.one",
        "import a.one as x",
        "from a import one",
        "from a.one import X",
        "from . import one",
        "from .one import X",
        "def f():\n    from a.one import X",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a.one import X",
    ],
)
def test_the_check_itself_sees_a_circle_however_it_is_closed(closing: str) -> None:
    graph = graph_of(
        {"a.__init__": "", "a.one": "from a.two import Y", "a.two": "from a import three", "a.three": closing}
    )
    assert circles(graph) == [["a.one", "a.three", "a.two"]]
    assert one_way_round(graph, ["a.one", "a.three", "a.two"]) == ["a.one", "a.two", "a.three", "a.one"]


def test_a_package_and_its_module_can_make_a_circle_and_two_circles_are_distinguished() -> None:
    through_package = {"a.__init__": "from a.one import X", "a.one": "from a import Y"}
    other = {"b.one": "import b.two, struct", "b.two": "import b.one", "b.three": "import b.one"}
    assert circles(graph_of(through_package | other)) == [["a", "a.one"], ["b.one", "b.two"]]


def test_the_check_lets_a_chain_pass() -> None:
    assert not circles(graph_of({"a": "import b, c", "b": "from c import X", "c": "import struct"}))
