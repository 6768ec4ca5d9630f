"""Commands in the pages, as data: what a reader would type, where it stands, and whether a test runs it.

A page shows commands in blocks fenced as ```console. A line that begins with `$ ` is a command (a backslash at its end
continues it on the next line); all other lines show output and are not compared. A comment right before the block
changes that:

    <!-- commands: skip, REASON -->     not run
    <!-- commands: fail -->             each command must end with an exit code other than 0

`stratalog start` and `stratalog cluster start` run beside what follows until the page ends (a `--part` of a cluster is
started and that was it). `make TARGET` is not run (it would run this test again): the target must exist. Addresses with
Stratalog's own ports, and the block of 100 ports from 19000 on, are replaced by free ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?:<!-- commands: (?P<marker>[^>]*?) -->\s*\n)?^```console\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class DocumentedCommand:
    line: int
    text: str
    must_fail: bool = False

    @property
    def starts_a_node(self) -> bool:
        is_start = re.search(r"\bstratalog (cluster )?start\b", self.text) is not None
        return is_start and "--help" not in self.text and "--part" not in self.text

    @property
    def tells_whether_all_is_in_order(self) -> bool:
        """By its exit code; a page has it where that is so a moment later."""
        return "stratalog cluster status" in self.text

    @property
    def make_target(self) -> str | None:
        match = re.match(r"make ([a-z-]+)", self.text)
        return match.group(1) if match else None

    @property
    def program(self) -> str:
        """A program beyond the ordinary that the command needs."""
        return "kcat" if re.search(r"\bkcat\b", self.text) else "bash"

    @property
    def needs_pipeline(self) -> bool:
        """Whether requirements/pipeline.txt has to be installed."""
        return "stratalog pipeline" in self.text


def commands_of(text: str) -> list[DocumentedCommand]:
    """The commands of a page that are to be run, in order."""
    found = []
    for block in _BLOCK.finditer(text):
        marker = block.group("marker") or ""
        if marker.startswith("skip"):
            if not marker.removeprefix("skip").strip(" ,"):
                raise ValueError("a skipped block says why: <!-- commands: skip, REASON -->")
            continue
        first_line = text[: block.start("body")].count("\n") + 1
        lines = block.group("body").split("\n")
        at = 0
        while at < len(lines):
            began = at
            if lines[at].startswith("$ "):
                words = lines[at][2:]
                while words.endswith("\\") and at + 1 < len(lines):
                    at += 1
                    words = words[:-1] + lines[at].strip()
                found.append(DocumentedCommand(first_line + began, words, marker == "fail"))
            at += 1
    return found


def pages_with_commands(repository: Path) -> list[Path]:
    pages = [repository / "README.md", repository / "CONTRIBUTING.md", *sorted((repository / "docs").glob("*.md"))]
    return [page for page in pages if page.exists() and commands_of(page.read_text(encoding="utf-8"))]
