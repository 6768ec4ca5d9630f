"""`make demo-pipeline` on some of the flights: what Spark reads from the bucket is what pandas has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.pipeline_extra import NO_PIPELINE, needs_spark

pytest.importorskip("fastavro", reason=NO_PIPELINE)

pytestmark = needs_spark


@pytest.mark.timeout(300)
def test_some_of_the_flights_become_a_table_that_equals_pandas(repository: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "tools/demo_pipeline.py", "--limit", "5000", "--plot", str(plot)],
        cwd=repository,
        env=os.environ | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("5,000 flights of ") and last.endswith(": OK")
    assert plot.read_text().startswith("<svg")
    left = [path for path in scratch.iterdir() if path.name.startswith("demo")]
    assert left == [], "nothing is left behind"


def test_what_differs_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repository / "tools")
    from demo_pipeline import Delays, differences

    sound = {"AA": Delays(2, 1.5, float("nan")), "UA": Delays(1, 0.0, 0.0)}
    assert differences(sound, dict(sound)) == []
    assert len(differences({**sound, "AA": Delays(3, 1.5, 1.0)}, sound)) == 1
    assert len(differences({**sound, "AA": Delays(2, 1.6, float("nan"))}, sound)) == 1
    assert len(differences({"UA": sound["UA"]}, sound)) == 1
