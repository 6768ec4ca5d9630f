"""What the bench and the demo do when they are disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.source_tree import REPOSITORY


def test_a_bench_that_is_ended_early_has_written_the_cells_that_were_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "bench"))
    bench: Any = pytest.importorskip("stratalog_bench.__main__")
    row: Any = pytest.importorskip("stratalog_bench.rows").Row

    def ended(_: object) -> object:
        raise SystemExit(143)

    cells: dict[str, Callable[[object], object]] = {
        "one": lambda _: [row("speed", "/s", "higher", [1.0])],
        "two": ended,
    }
    monkeypatch.setattr(bench, "CELLS", cells)
    monkeypatch.setattr("sys.argv", ["bench", "--quick", "--output", str(tmp_path)])
    with pytest.raises(SystemExit):
        bench.main()
    (kept,) = json.loads((tmp_path / "partial.json").read_text())
    assert kept["name"] == "speed" and not (tmp_path / "latest.json").exists()


def test_a_demo_whose_ports_are_taken_before_it_has_them_tries_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tools"))
    demo: Any = pytest.importorskip("demo_cluster")
    tried: list[int] = []

    def start_at(port_base: int, directory: Path, *_: object, is_secure: bool) -> str:
        (directory / "cluster").mkdir(parents=True, exist_ok=len(tried) >= 3)  # what a start leaves that got no further
        tried.append(port_base)
        if len(tried) != 3:
            raise demo.PortsTaken("somebody was faster")
        return "started"

    monkeypatch.setattr(demo, "_start_at", start_at)
    assert demo.start_cluster(tmp_path, 3, 1 << 20, on_usual_ports=False, is_secure=False) == "started"
    assert len(tried) == 3
    with pytest.raises(demo.PortsTaken):
        demo.start_cluster(tmp_path, 3, 1 << 20, on_usual_ports=False, is_secure=False)
