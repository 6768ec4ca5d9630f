"""The distribution carries the packages whole, and nothing that is for development only."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
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


def programs_without(missing: str, folder: Path) -> Path:
    """A folder for PATH with the programs of this machine, one left out."""
    folder.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(place).glob("*"):
            if program.name != missing and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return folder


def build(folder: Path, programs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script, venv = REPOSITORY / "tools" / "wheel.sh", Path(sys.executable).parent.parent
    return subprocess.run(
        ["bash", str(script), str(venv), str(folder), *words],
        env=os.environ | {"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_wheel_that_must_be_compiled_is_not_built_without_a_compiler(tmp_path: Path) -> None:
    built = build(tmp_path, programs_without("cc", tmp_path / "programs"), "--compiled")
    assert built.returncode == 1 and "no C compiler" in built.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_the_wheel_contains_the_packages_whole(tmp_path: Path) -> None:
    built = build(tmp_path, programs_without("cc", tmp_path / "programs"))
    assert built.returncode == 0, built.stderr
    assert "not compiled, because there is no C compiler" in built.stdout and "apt-get install gcc" in built.stdout
    (wheel,) = tmp_path.glob("stratalog-*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(REPOSITORY / root).as_posix()
        for root, package in PACKAGES.items()
        for path in python_files((f"{root}/{package}",))
    }
    for folder in ("templates", "static"):
        files = (REPOSITORY / "core" / "stratalog" / "ui" / folder).iterdir()
        expected |= {f"stratalog/ui/{folder}/{path.name}" for path in files}
    assert expected - names == set()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == set(PACKAGES.values())
    entry_points = next(name for name in names if name.endswith("entry_points.txt"))
    assert "stratalog = stratalog_cli.entry:main" in zipfile.ZipFile(wheel).read(entry_points).decode()


def test_each_extra_with_commands_brings_what_asks_s3_about_a_bucket() -> None:
    """`doctor`, `topics restore` and the jobs that archive import it only when they need it, so nothing else would
    notice that it is missing."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(any(one.startswith("boto3") for one in extras[name]) for name in ("node", "cli", "pipeline"))
    locked = (REPOSITORY / "requirements" / "pipeline.txt").read_text()
    assert "\nboto3==" in locked
