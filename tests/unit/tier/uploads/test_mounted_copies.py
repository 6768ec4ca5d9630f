"""The nodes that the uploader asks for data in the directories of retired nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from stratalog.machines.tiering.upload_events import Piece
from stratalog.model.errors import Unavailable
from stratalog.model.metadata import Snapshot
from stratalog.model.mounts import Mount
from stratalog.model.segment import Segment
from stratalog.settings.process import ProcessSettings
from stratalog.settings.topic import TopicSettings
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.copies.peer_reads import PeerReads
from stratalog_node.tier.store.stats import TierStats
from stratalog_node.tier.uploads.encoder import Encoder
from stratalog_node.tier.uploads.mounted_copies import DirectoryAway, MountedCopies
from unit.machines.tiering.test_mounted_uploads import KEY, SEALED, mount


class Peers:
    """One node is passed over for a while, for it did not answer."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked: list[Sequence[int]] = []

    def holders(self, segment: Segment) -> tuple[Sequence[int], Sequence[int]]:
        return (), [node for node in segment.local_nodes if node != self.silent]

    async def read(self, segment: Segment, nodes: Sequence[int], offset: int, max_bytes: int) -> bytes:
        self.asked.append(nodes)
        raise Unavailable("nobody answers in this test")


@pytest.mark.parametrize(("silent", "asked"), [(1, (2, 1)), (2, (1, 2)), (0, (1, 2))])
async def test_a_directory_that_did_not_answer_is_asked_last(silent: int, asked: tuple[int, ...]) -> None:
    """Each read of a megabyte would wait two seconds for it. It is not left out: it may be the only one with the
    data."""
    catalog = Catalog(lambda overrides: TopicSettings.resolve(ProcessSettings(), overrides))
    mounts: list[Mount] = [mount(1, 3), mount(2, 3)]
    catalog.load(Snapshot(1, (), (), (), mounts=tuple(mounts)))
    peers, encoder = Peers(silent), Encoder()
    copies = MountedCopies(3, catalog, cast(PeerReads, peers), encoder, TierStats())
    try:
        with pytest.raises(DirectoryAway):
            await copies.read(SEALED, Piece(KEY, 0, 1 << 20))
    finally:
        encoder.close()
    assert [tuple(nodes) for nodes in peers.asked] == [asked]
