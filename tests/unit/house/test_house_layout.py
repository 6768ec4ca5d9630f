"""The floor plan: nothing in a source root but its package, and names that say something."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

from support.source_tree import REPOSITORY, SOURCE_ROOTS, project_files, python_files, relative

EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "stuff", "tools", "lib"}


def test_a_source_root_is_never_a_package() -> None:
    """`operator/__init__.py` would shadow the standard library's operator for everything that runs in the checkout."""
    strays = [relative(path) for root in SOURCE_ROOTS for path in (REPOSITORY / root).glob("*.py")]
    assert not strays, f"a source root holds a package and nothing else: {strays}"


def test_the_standard_operator_module_still_imports_in_the_checkout() -> None:
    program = "import operator; print(operator.itemgetter(1)((1, 2)), operator.__file__ or 'frozen')"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 ")
    assert str(REPOSITORY / "operator") not in done.stdout


def test_no_module_has_a_name_that_says_nothing() -> None:
    nameless = [relative(path) for path in python_files() if path.stem in EMPTY_NAMES]
    assert not nameless, f"name the subject instead: {nameless}"


def test_tests_are_no_packages_and_their_names_are_unique() -> None:
    tests = python_files(("tests",))
    assert not [relative(path) for path in tests if path.name == "__init__.py"]
    times = Counter(path.name for path in tests if path.stem != "conftest")
    assert not [name for name, count in times.items() if count > 1]


def test_every_module_of_the_product_opens_with_what_it_promises() -> None:
    silent = [
        relative(path)
        for path in python_files(("core", "storage_node", "meta_service", "cli", "operator", "pipeline", "sim"))
        if (source := path.read_text(encoding="utf-8")).strip() and ast.get_docstring(ast.parse(source)) is None
    ]
    assert not silent, f"no module docstring: {silent}"


def test_every_asked_folder_says_what_lives_in_it() -> None:
    for folder in ("operator", "crds", "charts", "e2e", "pipeline"):
        page = REPOSITORY / folder / "README.md"
        built = [path for path in project_files() if relative(path).startswith(f"{folder}/") and path != page]
        assert built or page.is_file(), f"{folder}/ is empty and does not say why"
