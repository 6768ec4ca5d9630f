"""A shard whose leader is gone, as the next leader shows it before the first write."""

from __future__ import annotations

import pytest

from stratalog.model.commands.table_commands import BeginRecovery
from support.node_cluster import NodeCluster
from support.waiting import eventually


@pytest.mark.fault("shard-next-leader-written")
async def test_the_next_leader_knows_where_an_unwritten_log_ends(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    for number in range(5):
        await cluster.append(key, b"%d" % number)
    lost = cluster.leader(key)
    await cluster.kill(lost)
    await cluster.lose(lost)
    shard = await cluster.leads_again(key)
    assert shard.high_watermark == shard.end_offset == 5, "else who has read to 3 is out of range"
    await cluster.is_sealed(key)
    assert await cluster.values(key) == [b"0", b"1", b"2", b"3", b"4"]
    assert await cluster.append(key, b"5") == 5


@pytest.mark.fault("shard-next-leader-written")
async def test_so_does_one_that_leads_again_what_another_led_meanwhile(cluster: NodeCluster) -> None:
    await cluster.start(1, 2)
    key = await cluster.shard(2)
    for number in range(6):
        assert await cluster.append(key, b"%d" % number) == number
        shard = await cluster.leads_again(key)
        if number % 2 and shard.active is not None:
            await cluster.meta.service.perform(BeginRecovery(shard.active.key))
            await eventually(lambda: cluster.led(key) is not None)
            assert (await cluster.leads_again(key)).high_watermark == number + 1
