"""A node that is started with standard descriptors closed, as some supervisors do.

The next file that is opened takes the free number, a segment's perhaps, and what a library writes to number 2 (a crash
report, a note of the metadata store) would go into it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.node_process import NodeProcess
from support.waiting import eventually_sync


class _WithoutInputAndErrors(NodeProcess):
    def command(self, address: str) -> list[str]:
        return ["sh", "-c", 'exec "$@" 0<&- 2>&-', "sh", *super().command(address)]


@pytest.mark.fault("node-command-started-standard")
@pytest.mark.timeout(120)
def test_no_file_of_a_node_gets_the_number_of_a_closed_descriptor(tmp_path: Path) -> None:
    with _WithoutInputAndErrors(tmp_path / "data") as node:
        producer = Producer({"bootstrap.servers": node.bootstrap, "message.timeout.ms": 30_000})
        told: list[object] = []
        producer.produce("t", b"x", on_delivery=lambda error, _: told.append(error))
        eventually_sync(lambda: producer.poll(0.05) > 0 or bool(told), 40)
        assert told == [None]
        for number in (0, 2):
            assert os.readlink(f"/proc/{node.pid}/fd/{number}") == os.devnull
