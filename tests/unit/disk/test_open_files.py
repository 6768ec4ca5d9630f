"""What a process may open is shared out so that all kinds together fit."""

from __future__ import annotations

import pytest

from stratalog_node.disk.descriptors import Descriptors
from stratalog_node.open_files import OpenFiles

HTTP_PORTS = 2


@pytest.mark.fault("kafka-clients-connect-process")
@pytest.mark.parametrize("most", [1024, 4096, 20_000, 65_536, 1 << 20])
def test_all_shares_together_leave_an_eighth_for_the_rest(most: int) -> None:
    shares = OpenFiles.of(most)
    segment_files = Descriptors(shares.segment_files).most
    taken = segment_files + shares.kafka_connections + HTTP_PORTS * shares.http_connections
    assert taken <= most * 7 // 8


def test_a_process_with_many_files_serves_as_many_clients_as_the_settings_say_by_default() -> None:
    assert OpenFiles.of(1 << 19).kafka_connections >= 10_000
