"""The power fails under a real node at random moments: topics that are acknowledged after a flush lose nothing, others
at most a tail that was nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash_drill import Drill
from support.power_cut import PoweredNode
from support.power_drill import PowerDrill


@pytest.mark.fault("power-fails-bytes-names")
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
    rounds = max(3, crash_rounds // 5)
    for number in range(10 * rounds):
        if number >= rounds and taken:
            break  # with all flushed before its answer, some cuts find nothing to take
        drill.round()
    drill.finish()
    print(f"{len(taken)} files lost {sum(taken.values())} bytes")
    assert taken


@pytest.mark.fault("power-fails-upload-flush")
@pytest.mark.timeout(3600)
def test_under_the_default_policy_a_power_cut_costs_an_unflushed_tail_at_most(
    tmp_path: Path, crash_rounds: int, crash_seed: int
) -> None:
    """Parts and rolls reach metadata and bucket before the local flush: every shard heals and continues by itself."""
    drill = PowerDrill(tmp_path, crash_seed)
    drill.begin()
    for _ in range(max(5, crash_rounds // 4)):
        drill.round()
    drill.finish()
    print(f"{drill.taken_bytes} bytes taken, {drill.lost_records} records lost, {drill.healed_shards} shards healed")
    assert drill.taken_bytes
