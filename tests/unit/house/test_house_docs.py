"""The pages: no place that only one machine has, every decision numbered, every link leads somewhere."""

from __future__ import annotations

import re

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
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing
