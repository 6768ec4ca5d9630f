"""Plain English: log lines are sentences, and phrases that stop a native reader are neither on pages nor in messages,
docstrings or comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.telemetry.logs import is_secret
from support.source_tree import PRODUCT_ROOTS, REPOSITORY, project_files, python_files, relative

LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
IDENTIFIER = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
ALL_PAGES = sorted(relative(path) for path in project_files() if path.suffix == ".md")


def logged() -> list[tuple[str, str]]:
    """(where, the first argument) of each call of a logger whose first argument is a text."""
    found = []
    for path in python_files(PRODUCT_ROOTS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=level),
                    args=[ast.Constant(value=str(text)), *_],
                ) if level in LEVELS:
                    found.append((f"{relative(path)}:{node.lineno}", text))
    return found


def test_log_lines_are_sentences_and_no_identifiers() -> None:
    lines = logged()
    assert len(lines) > 100
    assert not [(where, text) for where, text in lines if IDENTIFIER.fullmatch(text)]


def test_log_lines_have_no_field_whose_value_is_hidden_as_a_secret() -> None:
    """`token: (secret)` helps no reader: a value that is not secret needs another name, and a secret is left out."""
    fields = [
        (f"{relative(path)}:{node.lineno}", keyword.arg)
        for path in python_files(PRODUCT_ROOTS)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS | {"bind", "bind_contextvars"}
        for keyword in node.keywords
        if keyword.arg is not None
    ]
    assert len(fields) > 200
    assert not [(where, name) for where, name in fields if is_secret(name)]


# Plain English -----------------------------------------------------------------------------------------------
# Phrases that stop a native reader, and what to write instead. Only the worst: the list is not a dictionary.
EVERYWHERE = (
    (r"\bmend(?:s|ed|ing)?\b", "fix, repair"),
    (r"\b(?:of|by) ours\b", "Stratalog's, the internal one"),
    (r"\bgood for nothing\b|\bcosts? (?:money )?for nothing\b", "useless; wastes money"),
    (r"\bgo(?:es)? after [0-9]", "expires after"),
    (r"\b[Ww]here (?:does|do) \w+ lie\b", "where is it stored"),
    (r"\bis told as such\b|\bare told as such\b", "is reported as"),
    (r"\b(?:is|are) said to be stalled\b", "is reported as stalled"),
)
IN_MESSAGES = (
    *EVERYWHERE,
    (r"\b[Nn]obody\b", "no node, no client, it is unknown"),
    (r"\b[Ss]omebody\b|\b[Aa]nybody\b", "a person, another process, anyone"),
    (r"\bby hand\b|\bhand-made\b", "manually, by a user, yourself"),
    (r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b)[a-z]", "is not a"),
    (r"\bso many\b", "N, that many, how many"),
    (r"\bfor so long\b|\bso long ago\b", "for this long, this long ago"),
    (r"\ball the same\b", "anyway"),
    (r"\bgo(?:es)? on\b", "continues"),
    (r"\b(?:is|are|was|were) told\b", "learns, gets, is reported"),
    (r"\bstands? (?:still|twice|in|at|behind|under|on)\b", "is stuck, is set twice, is in"),
    (r"\b(?:a|the|one|two|each|next|last) looks?\b", "check, pass"),
    (r"\bmade anew\b|\bbegins? anew\b", "rebuilt, starts again"),
    (r"\blives? on\b", "is still running"),
)
IN_CODE = (
    *IN_MESSAGES,
    (r"\banew\b", "again"),
    (
        r"(?<!person )(?<!user )(?<!users )(?<!reader )(?<!those )(?<!people )\b[Ww]ho(?:ever)? "
        r"(?:leads|asks|reads|follows|writes|takes|waits|comes|holds|has|is|was|may|does|wants|sends|gets|goes|needs"
        r"|knows|calls|joins|serves|dies)\b",
        "name the actor: a leader, a client, a node, the caller",
    ),
    (r"\b[Ww]hom\b", "name the actor"),
    (r"\b(?:that|which|what|who|one) stands?\b|\bas (?:it|they) stands?\b", "is"),
    (r"\bmade of it\b|\bwhat (?:one|it) gets\b", "name the thing"),
    (r"(?:^|[.:;] )(?:Never|never) (?:is|are|does|do|has|was) ", "do not invert the sentence"),
    (r"(?:^|[.;] )Of (?:which|whom|whose)\b", "begin with the subject"),
)
"""For docstrings and comments."""
CODE_ROOTS = (
    "core",
    "storage_node",
    "meta_service",
    "cli",
    "operator",
    "pipeline",
    "sim",
    "e2e",
    "bench",
    "tools",
    "tests",
)
FOR_OPERATORS = (
    *EVERYWHERE,
    (r"\bby hand\b|\bmade by hand\b", "manually, by a user, yourself"),
    (r"\bso many\b", "N, that many, how many"),
    (r"\bfor so long\b|\bso long ago\b", "for this long, this long ago"),
    (r"\ball the same\b", "anyway"),
    (r"\bstands? (?:still|twice|in|at|behind|under)\b", "is stuck, is set twice, is in"),
    (r"\b(?:a|one|two|each|next|last) looks?\b", "check, pass"),
)
PAGES = (
    *("README.md", "docs/alerts.md", "docs/backup.md", "docs/coming-from-kafka.md", "docs/command-line.md"),
    *("docs/configure.md", "docs/group-migration.md", "docs/install.md", "docs/kubernetes.md", "docs/operate.md"),
    *("docs/pipeline.md", "docs/scaling.md", "docs/scaling-spec.md", "docs/sizing.md", "docs/upgrade.md"),
    *("deploy/monitoring/alerts.yaml", "docs/design.md", "docs/meta.md", "docs/meta-store.md", "docs/replication.md"),
    *("docs/kafka.md", "docs/operator.md", "docs/benchmarks.md", "docs/dependencies.md", "docs/faults.md"),
    *("docs/formats.md", "docs/formats-groups.md", "e2e/README.md"),
    *(page for page in ALL_PAGES if page.startswith("docs/decisions/")),
)


def messages() -> list[tuple[str, str]]:
    """(where, text) of all that the product may print: texts with a space that are not docstrings."""
    found = []
    for path in python_files(PRODUCT_ROOTS):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                silent |= {id(one) for one in node.values}
                pieces = (str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
                found.append((f"{relative(path)}:{node.lineno}", "".join(pieces)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
                found.append((f"{relative(path)}:{node.lineno}", node.value))
    return [(where, text) for where, text in found if " " in text]


def prose_of(path: Path) -> Iterator[tuple[str, str]]:
    """(where, text) of the docstrings and comments of a file. Indented blocks, such as tables and examples, are left
    out."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines = node.value.value.splitlines()
            prose = [line for line in lines if not line.startswith(" " * (node.col_offset + 4))]
            yield f"{relative(path)}:{node.lineno}", " ".join(" ".join(prose).split())
    block, start, last = list[str](), 0, -2
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and block:
                yield f"{relative(path)}:{start}", " ".join(block)
                block = []
            start = token.start[0] if not block else start
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    if block:
        yield f"{relative(path)}:{start}", " ".join(block)


def stumbles(texts: list[tuple[str, str]], phrases: tuple[tuple[str, str], ...]) -> list[str]:
    return [
        f"{where}: {found.group()!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}: write {instead}"
        for where, text in texts
        for phrase, instead in phrases
        for found in re.finditer(phrase, text)
    ]


def lines_of(page: str) -> list[tuple[str, str]]:
    """The lines of a page without code, whose words are not prose."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", lambda block: "\n" * block.group().count("\n"), text, flags=re.DOTALL)
    return [(f"{page}:{number}", re.sub(r"`[^`]*`", "`", line)) for number, line in enumerate(text.splitlines(), 1)]


def test_messages_help_and_descriptions_are_plain_english() -> None:
    said = messages()
    assert len(said) > 2_000
    assert not stumbles(said, IN_MESSAGES)


@pytest.mark.parametrize("root", CODE_ROOTS)
def test_docstrings_and_comments_are_plain_english(root: str) -> None:
    prose = [found for path in python_files((root,)) for found in prose_of(path)]
    assert prose
    assert not stumbles(prose, IN_CODE)


@pytest.mark.parametrize("page", PAGES)
def test_pages_for_operators_are_plain_english(page: str) -> None:
    assert not stumbles(lines_of(page), FOR_OPERATORS)


@pytest.mark.parametrize("page", [page for page in ALL_PAGES if page not in PAGES])
def test_no_page_has_the_worst_phrases(page: str) -> None:
    assert not stumbles(lines_of(page), EVERYWHERE)


def test_a_phrase_is_found_in_its_text() -> None:
    assert stumbles([("here", "the value is no number")], IN_MESSAGES)
    assert stumbles([("here", "records go after 7 days")], EVERYWHERE)
    assert not stumbles([("here", "there is no topic, and it is no longer there")], IN_MESSAGES)
