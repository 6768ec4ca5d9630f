"""The ends of shards, including those that other nodes lead: for the lag of the groups that this node coordinates.

When a page of metrics is made, the leaders are asked as a client asks them, a thousand shards at a time and all nodes
in parallel; a node that does not answer within a second is left out, and so are its shards.
Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Final

from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog_node.replication.peer import Asker
from stratalog_node.replication.peer_connection import PeerConnection
from stratalog_node.shards.catalog.catalog import Catalog
from stratalog_node.shards.log.directory import ShardDirectory
from stratalog_node.slices import Slices

_TIMEOUT_S: Final = 1.0
_TOGETHER: Final = 1_000
_ANSWER_BYTES: Final = 1 << 20
ShardName = tuple[str, int]
"""Topic and shard."""


class LogEnds:
    def __init__(self, catalog: Catalog, shards: ShardDirectory, asker: Asker) -> None:
        self._catalog = catalog
        self._shards = shards
        self._asker = asker
        self._lines: dict[int, PeerConnection] = {}

    async def find(self, wanted: Iterable[ShardKey]) -> dict[ShardKey, int]:
        """The ends of the shards whose leader answered."""
        slices = Slices()
        found: dict[ShardKey, int] = {}
        elsewhere: defaultdict[int, dict[ShardName, ShardKey]] = defaultdict(dict)
        for key in wanted:
            shard, leader = self._shards.get(key), self._catalog.leader_of(key)
            if shard is not None and shard.is_leader:
                found[key] = shard.high_watermark
            elif shard is not None and leader is not None:
                elsewhere[leader[0]][shard.topic.name, key.shard] = key
            await slices.did()
        for ends in await asyncio.gather(*(self._ask(node, names) for node, names in elsewhere.items())):
            found.update(ends)
        return found

    async def _ask(self, node_id: int, names: dict[ShardName, ShardKey]) -> dict[ShardKey, int]:
        found: dict[ShardKey, int] = {}
        line = self._line(node_id)
        waiting = iter(names)
        while some := list(islice(waiting, _TOGETHER)):
            asked: defaultdict[str, list[int]] = defaultdict(list)
            for topic, shard in some:
                asked[topic].append(shard)
            try:
                ends = await line.ask_ends(asked, _TIMEOUT_S)
            except Unavailable:
                return found  # what it leads has no lag to show; others say that it is away
            found.update((names[name], end) for name, end in ends.items() if name in names)
        return found

    def _line(self, node_id: int) -> PeerConnection:
        line = self._lines.get(node_id)
        if line is None:
            line = self._lines[node_id] = PeerConnection(
                node_id, self._asker, partial(self._address, node_id), _ANSWER_BYTES
            )
        return line

    def _address(self, node_id: int) -> tuple[str, int] | None:
        node = self._catalog.node(node_id)
        return None if node is None else (node.host, node.port)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
