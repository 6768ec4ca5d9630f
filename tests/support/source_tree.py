"""The checkout as data, for the tests that watch over the house itself.

Only files that belong to the project are listed: neither what git ignores nor what an editor left behind.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SOURCE_ROOTS = ("core", "storage_node", "meta_service", "cli", "operator", "pipeline", "sim")
PRODUCT_ROOTS = ("core", "storage_node", "meta_service", "cli", "operator", "pipeline")
PURE_ROOMS = (
    *(f"core/stratalog/{room}" for room in ("model", "formats", "kafka", "machines")),
    *(f"operator/stratalog_operator/{room}" for room in ("plan", "specs")),
)


@cache
def project_files() -> tuple[Path, ...]:
    """All files of the project, sorted; all files in the folder if this is not a git checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if listed.returncode == 0:
        paths = [REPOSITORY / name for name in listed.stdout.decode().split("\0") if name]
    else:
        hidden = {".venv", ".cache", ".git"}
        paths = [path for path in REPOSITORY.rglob("*") if not hidden & set(path.relative_to(REPOSITORY).parts)]
    return tuple(sorted(path for path in paths if path.is_file()))


def python_files(roots: tuple[str, ...] = ()) -> list[Path]:
    """The Python files below the given top-level folders; all of them when none is given."""
    chosen = [path for path in project_files() if path.suffix == ".py"]
    return [path for path in chosen if not roots or path.relative_to(REPOSITORY).as_posix().startswith(prefixes(roots))]


def prefixes(roots: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{root}/" for root in roots)


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()
