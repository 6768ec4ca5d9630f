"""`stratalog verify` on a node that works: parts merge, bundles go, copies are freed under it; no false alarm."""

from __future__ import annotations

import time
from pathlib import Path

from support.crash_drill import PLACES, SETTINGS, TOPICS, command
from support.ledger import IdempotentSender, Ledger, PlainSender, create_topics
from support.node_process import NodeProcess


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
        until = time.monotonic() + 8
        runs = 0
        while time.monotonic() < until:
            command("verify", "--admin", node.admin)
            runs += 1
        for worker in workers:
            worker.stop()
            worker.join(60)
        assert runs >= 2 and not ledger.wrong_answers
        metrics = node.metrics()
        for name in ("parts_moved", "segments_completed", "local_copies_freed", "bundles_deleted"):
            assert metrics[f"stratalog_tier_{name}_total"] > 0, name
