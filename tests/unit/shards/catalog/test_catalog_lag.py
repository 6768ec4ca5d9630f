"""A caller that asks whether the catalog is new enough does not get an older answer."""

from __future__ import annotations

import asyncio

from stratalog_node.shards.catalog.lag import CatalogLag
from support.waiting import eventually


class Metadata:
    """Catalog and service in one: the catalog never shows more than version 1."""

    def __init__(self) -> None:
        self.version = 1
        self.reads: list[asyncio.Future[int]] = []

    async def read_version(self) -> int:
        self.reads.append(asyncio.get_running_loop().create_future())
        return await self.reads[-1]


async def test_a_cancelled_question_leaves_no_older_answer_behind() -> None:
    metadata = Metadata()
    lag = CatalogLag(metadata, metadata)
    first, second, third = (asyncio.create_task(lag.catch_up()) for _ in range(3))
    await eventually(lambda: len(metadata.reads) == 1)
    metadata.reads[0].set_result(1)
    assert await first
    await eventually(lambda: len(metadata.reads) == 2)
    second.cancel()
    assert not await third, "nobody looked since it asked"
