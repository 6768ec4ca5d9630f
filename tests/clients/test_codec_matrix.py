"""Every client writes with every codec, and every client reads what every other one wrote."""

from __future__ import annotations

import pytest

from support.foreign_clients import CLIENTS, CODECS, ForeignClient, Message
from support.node_process import NodeProcess
from support.raw_client import RawClient

COUNT = 60
MESSAGES = [
    Message(b"key-%d" % number, b"value %d " % number + b"to be squeezed, " * 20, (("from", b"matrix"),))
    for number in range(COUNT)
]


def or_skip(client: ForeignClient, codec: str = "none") -> None:
    if reason := client.missing(codec):
        pytest.skip(reason)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_what_one_client_wrote_every_client_reads(
    writer: ForeignClient, codec: str, node: NodeProcess, topic: str
) -> None:
    or_skip(writer, codec)

    writer.produce(node.bootstrap, topic, MESSAGES, codec)

    with RawClient(node.bootstrap) as raw:
        (fetched,) = raw.fetch(topic, 0)
    used = {CODECS[header.compression] for header in fetched.batches()}
    assert used == {codec}, "the node keeps batches as the producer compressed them"
    for reader in CLIENTS:
        if reader.missing(codec) is None:
            assert reader.consume(node.bootstrap, topic, COUNT) == MESSAGES, f"read by {reader.name}"
