"""The distribution carries the packages whole, and nothing that is for development only."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from support.source_tree import REPOSITORY, python_files

PACKAGES = {
    "core": "stratalog",
    "storage_node": "stratalog_node",
    "meta_service": "stratalog_meta",
    "cli": "stratalog_cli",
    "operator": "stratalog_operator",
    "pipeline": "stratalog_pipeline",
}


def test_the_wheel_contains_the_packages_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("stratalog-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(REPOSITORY / root).as_posix()
        for root, package in PACKAGES.items()
        for path in python_files((f"{root}/{package}",))
    }
    page = REPOSITORY / "meta_service" / "stratalog_meta" / "page"
    expected |= {f"stratalog_meta/page/{path.name}" for path in page.iterdir() if path.is_file()}
    assert expected - names == set()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == set(PACKAGES.values())
    entry_points = next(name for name in names if name.endswith("entry_points.txt"))
    assert "stratalog = stratalog_cli.entry:main" in zipfile.ZipFile(wheel).read(entry_points).decode()
