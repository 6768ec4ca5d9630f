"""A node with no setting but its data directory works, and says so to every client that can reach it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.foreign_clients import Confluent, Message
from support.node_process import NodeProcess


@pytest.mark.fault("start-without-settings-probes")
def test_a_node_without_settings_works_and_answers_probes_without_a_token(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data") as node:
        messages = [Message(b"key", b"value %d" % number) for number in range(10)]
        Confluent().produce(node.bootstrap, "made-on-demand", messages)
        assert Confluent().consume(node.bootstrap, "made-on-demand", 10) == messages
        assert all(node.get(path) for path in ("/healthz", "/readyz", "/metrics"))
    with node:
        assert Confluent().consume(node.bootstrap, "made-on-demand", 10) == messages
