"""What the README says of speed is what the last whole benchmark measured."""

from __future__ import annotations

import json
import re
from typing import Any

from support.source_tree import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
ROWS: list[dict[str, Any]] = json.loads((REPOSITORY / "bench/results/latest.json").read_text(encoding="utf-8"))


def row(begin: str, end: str) -> dict[str, Any]:
    (found,) = (row for row in ROWS if row["name"].startswith(begin) and row["name"].endswith(end))
    assert found["peer"] == "kafka"
    return found


def figures(pattern: str) -> list[float]:
    found = re.search(pattern, README.replace("\n", " "))
    assert found is not None, f"the README says this no longer: {pattern}"
    return [float(figure) for figure in found.groups()]


def test_the_line_about_speed_has_the_figures_of_the_last_whole_run() -> None:
    large = row("3 nodes, 64 KiB batches", "KiB records: records")["ratio"]
    small = row("3 nodes, 16 KiB batches", "KiB records: records")["ratio"]
    assert figures(r"take ([\d.]+) times \(64 KiB batches\) to ([\d.]+) times \(16 KiB\)") == [
        round(large, 1),
        round(small, 1),
    ]
    failover = row("3 nodes, leader killed", "acknowledged write")
    assert figures(r"acknowledged after ([\d.]+) s instead of ([\d.]+) s") == [
        round(failover["value"], 1),
        round(failover["peer_value"], 1),
    ]
    assert "a quarter of the memory" in README.replace("\n", " ")
    memory = [row("one node: RSS", end)["ratio"] for end in ("at start", "in and out")]
    assert all(3.7 < ratio < 4.3 for ratio in memory), memory


def test_what_a_new_node_and_one_that_leaves_copy_was_measured() -> None:
    joins = row("scale-out 3 to 4", "copied to the new node")
    assert figures(r"a new node copies nothing \(measured: (\d+) MiB, Kafka's reassignment (\d+) MiB") == [
        round(joins["value"]),
        round(joins["peer_value"]),
    ]
    assert row("a node that holds 10 GiB leaves", "copied between nodes")["value"] == 0
