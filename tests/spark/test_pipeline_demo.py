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


LIMIT = 5_000


def run_demo(repository: Path, scratch: Path, *arguments: str) -> str:
    """Its last line."""
    scratch.mkdir()
    plot = scratch.with_suffix(".svg")
    done = subprocess.run(
        [sys.executable, "tools/demo_pipeline.py", "--limit", str(LIMIT), "--plot", str(plot), *arguments],
        cwd=repository,
        env=os.environ | {"TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert plot.read_text().startswith("<svg")
    left = [path for path in scratch.iterdir() if path.name.startswith("demo")]
    assert left == [], "nothing is left behind"
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(300)
def test_some_of_the_flights_become_a_table_that_equals_pandas(repository: Path, tmp_path: Path) -> None:
    last = run_demo(repository, tmp_path / "scratch")
    assert last.startswith("5,000 flights of ") and last.endswith(": OK")


@pytest.mark.slow  # the demo once more, of another bucket
@pytest.mark.timeout(300)
def test_a_bucket_where_flights_were_written_twice_is_read_as_it_is(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of `make demo ARGS=--keep`, whose nodes came and went while flights were written again."""
    monkeypatch.syspath_prepend(repository / "tools")
    import demo_pipeline
    from flights import Flights
    from rich.console import Console

    flights = Flights(LIMIT)
    flights.keys += [*flights.keys[:700], b"N14228"]
    flights.values += [*flights.values[:700], b'{"row":-1}']
    bucket = demo_pipeline.fill(tmp_path / "demo", flights, Console(quiet=True))
    last = run_demo(repository, tmp_path / "scratch", "--bucket", bucket)
    assert last.startswith("5,000 flights of ") and last.endswith(": OK")


def test_what_differs_is_reported(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repository / "tools")
    from demo_pipeline import Delays, differences

    sound = {"AA": Delays(2, 1.5, float("nan")), "UA": Delays(1, 0.0, 0.0)}
    assert differences(sound, dict(sound)) == []
    assert len(differences({**sound, "AA": Delays(3, 1.5, 1.0)}, sound)) == 1
    assert len(differences({**sound, "AA": Delays(2, 1.6, float("nan"))}, sound)) == 1
    assert len(differences({"UA": sound["UA"]}, sound)) == 1
