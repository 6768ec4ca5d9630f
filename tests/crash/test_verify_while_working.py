"""`stratalog verify` on a node that works: parts merge, bundles go, copies are freed under it; no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crash_drill import PLACES, SETTINGS, TOPICS, command
from support.ledger import IdempotentSender, Ledger, PlainSender, create_topics
from support.node_process import NodeProcess
from support.waiting import eventually_sync

MOVES = ("parts_moved", "segments_completed", "local_copies_freed", "bundles_deleted")


@pytest.mark.fault("object-replaced-reader")
def test_verify_finds_nothing_wrong_while_data_moves_under_it(tmp_path: Path) -> None:
    settings = SETTINGS | {"remote.bundle.max.age.ms": 500, "remote.delete.delay.ms": 2_000}
    with NodeProcess(tmp_path / "data", str(tmp_path / "bucket"), settings) as node:
        create_topics(node.bootstrap, TOPICS)
        ledger = Ledger()
        workers = [
            IdempotentSender("idempotent", ledger, node.bootstrap, PLACES, 1),
            PlainSender("plain", ledger, node.bootstrap, PLACES, 1),
        ]
        for worker in workers:
            worker.start()
        runs = 0

        def is_verified_through_it_all() -> bool:
            nonlocal runs
            command("verify", "--admin", node.admin)
            runs += 1
            metrics = node.metrics()
            return runs >= 3 and all(metrics[f"stratalog_tier_{name}_total"] > 0 for name in MOVES)

        eventually_sync(is_verified_through_it_all, 90)
        for worker in workers:
            worker.stop()
            worker.join(60)
        assert not ledger.wrong_answers
