"""The power fails under a real node at random moments: topics that are acknowledged after a flush lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash_drill import Drill
from support.power_cut import PoweredNode


@pytest.mark.timeout(3600)
def test_a_node_that_flushes_before_it_answers_survives_power_cuts(
    tmp_path: Path, crash_rounds: int, crash_seed: int
) -> None:
    """Unflushed bytes are cut off, zeroed by pages, or kept; unflushed names may vanish. The journal helps."""
    taken: dict[str, int] = {}

    def cut(drill: Drill) -> None:
        assert isinstance(drill.node, PoweredNode)
        taken.update(drill.node.cut(drill.chance))

    drill = Drill(
        tmp_path,
        str(tmp_path / "bucket"),
        crash_seed,
        settings={"flush.policy": "fsync", "flush.interval.ms": 2_000},
        busy=False,
        node_class=PoweredNode,
        after_each_kill=cut,
    )
    drill.begin()
    for _ in range(max(3, crash_rounds // 5)):
        drill.round()
    drill.finish()
    print(f"{len(taken)} files lost {sum(taken.values())} bytes")
    assert taken
