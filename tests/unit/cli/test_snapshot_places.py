"""`stratalog snapshot`: a place that is mistyped does not look like one without snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from stratalog_cli.entry import build_app


def snapshot(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(("snapshot",)), ["snapshot", *arguments])


def said(ran: Result) -> str:
    return " ".join(ran.output.split())


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Of a cluster named c1 that has data and no snapshot."""
    made = tmp_path / "bucket"
    (made / "c1" / "data").mkdir(parents=True)
    (made / "c1" / "data" / "an-object").write_bytes(b"x")
    return made


def test_a_bucket_of_a_cluster_without_snapshots_says_how_to_take_one(bucket: Path) -> None:
    for more in ((), ("--cluster", "c1")):
        ran = snapshot("list", "--bucket", str(bucket), *more)
        assert ran.exit_code == 0 and "snapshot create" in ran.output


def test_a_bucket_of_no_cluster_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ran = snapshot("list", "--bucket", str(tmp_path / "empty"))
    assert ran.exit_code != 0 and "is it the right bucket" in said(ran)


def test_a_cluster_that_is_not_there_is_not_found(bucket: Path) -> None:
    ran = snapshot("list", "--bucket", str(bucket), "--cluster", "c2")
    assert ran.exit_code != 0 and "nothing of cluster c2" in said(ran)


def test_a_wait_below_zero_is_refused(bucket: Path) -> None:
    ran = snapshot("create", "x", "--bucket", str(bucket), "--wait", "-1", "--admin", "127.0.0.1:1")
    assert ran.exit_code == 2 and "--wait" in said(ran)
