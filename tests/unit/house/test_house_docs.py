"""The pages: no place that only one machine has, every decision numbered, every link leads somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from support.source_tree import REPOSITORY, project_files, relative

PAGES = [path for path in project_files() if path.suffix == ".md"]
TEXTS = [
    path
    for path in project_files()
    if path.suffix in {".md", ".py", ".sh", ".toml", ".txt", ".go", ".xml", ".yaml", ".yml", ""}
    and path.stat().st_size < 1_000_000
]
# The first folder of a path that exists on one machine only. Written so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.:/${}-])/(?:work|farm|home/[a-z]+|Users)/")


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in TEXTS:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{relative(path)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert not found


def test_locked_requirements_hold_hashes_and_no_addresses() -> None:
    for path in sorted((REPOSITORY / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        assert "--hash=sha256:" in text
        assert "://" not in text, f"{path.name} records where packages come from"


def test_every_decision_is_numbered_and_answers_the_four_questions() -> None:
    decisions = sorted(path for path in PAGES if relative(path).startswith("docs/decisions/"))
    numbers = []
    for path in decisions:
        match = re.fullmatch(r"(\d{4})-[a-z0-9-]+\.md", path.name)
        assert match, f"{path.name}: a decision is named NNNN-title.md"
        numbers.append(int(match.group(1)))
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {match.group(1)} "), f"{path.name}: the heading begins with the number"
        for heading in ("## Question", "## Measured", "## Chosen", "## When to look again"):
            assert heading in text, f"{path.name} has no {heading!r}"
    assert numbers == list(range(1, len(numbers) + 1)), "decisions are numbered without gaps"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_of_a_page_leads_somewhere(page) -> None:  # type: ignore[no-untyped-def]
    text = _without_code(page)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_to_a_section_names_a_heading_that_is_there(page) -> None:  # type: ignore[no-untyped-def]
    found = re.findall(r"\]\(([^)#\s]*\.md)?#([^)\s]+)\)", _without_code(page))
    missing = [
        f"{target}#{section}"
        for target, section in found
        if section not in _sections(page.parent / target if target else page)
    ]
    assert not missing


def _without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def _sections(page: Path) -> set[str]:
    """As GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", _without_code(page), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one).lower() for one in headings)
    return {re.sub(r"[^\w\- ]", "", one).strip().replace(" ", "-") for one in plain}


def test_no_text_tells_to_install_a_package_that_is_in_no_registry() -> None:
    """`pip install 'stratalog[clients]'` fetches whatever another publishes under that name."""
    told = re.compile(r"pip install [^`\n]*'?\bstratalog\[")
    found = [relative(path) for path in TEXTS if told.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert found == [relative(REPOSITORY / "tests" / "unit" / "house" / "test_house_docs.py")]


def test_the_table_of_dependencies_has_each_direct_one() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for some in project["optional-dependencies"].values() for one in some)]
    names = {re.split(r"[\[<>=;! ]", one, maxsplit=1)[0].lower() for one in wanted} - {"stratalog"}
    page = (REPOSITORY / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    assert sorted(name for name in names if f"`{name}`" not in page and f"`{name} " not in page) == []


@pytest.mark.parametrize("program", ["MirrorMaker", "Kafka Connect", "Kafka Streams", "Schema Registry"])
def test_what_runs_only_over_compacted_topics_is_named_as_missing_alone(program: str) -> None:
    """ "MirrorMaker 2 runs against Stratalog as against any cluster" was never run: its own topics are refused."""
    pages = {relative(path): path.read_text(encoding="utf-8") for path in PAGES if "docs/" in relative(path)}
    users = {name for name, text in pages.items() if program in text and not name.startswith("docs/decisions/")}
    missing = pages["docs/coming-from-kafka.md"].partition("## What is missing")[2].partition("\n## ")[0]
    assert program in missing
    assert users <= {"docs/coming-from-kafka.md", "docs/faults.md", "docs/pipeline.md", "docs/benchmarks.md"}
