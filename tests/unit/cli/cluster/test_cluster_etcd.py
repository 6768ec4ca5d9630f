"""Which etcd a cluster on one machine takes: the one on PATH, unless its version may lose data."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.etcd_versions import is_affected, parse_version
from stratalog_cli.cluster.etcd import find_etcd


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.4.23", True),
        ("3.5.0", True),
        ("v3.5.1", True),
        ("3.5.3", True),
        ("3.5.20", True),
        ("3.5.21", False),
        ("3.5.100", False),
        ("v3.6.0-rc.1", False),
        ("3.6.16", False),
        ("4.0.0", False),
        ("latest", False),
        ("", False),
    ],
)
def test_versions_below_3_5_21_are_affected(version: str, affected: bool) -> None:
    assert is_affected(version) is affected
    assert (parse_version(version) is None) is (version in ("latest", ""))


@pytest.mark.fault("etcd-path-lose-data")
@pytest.mark.parametrize(("said", "is_taken"), [("etcd Version: 3.5.1", False), ("etcd Version: 3.6.16", True)])
def test_an_etcd_that_may_lose_data_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_taken: bool
) -> None:
    program = tmp_path / "etcd"
    program.write_text(f"#!/bin/sh\necho '{said}'\necho 'Git SHA: 0'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")

    assert find_etcd() == (program if is_taken else None)


def test_without_an_etcd_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_etcd() is None
