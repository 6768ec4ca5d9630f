"""A right that ends while a request waits or reads is asked for again before the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from stratalog.model.rights import Operation, Rule
from stratalog_node.serve.connections.client_rights import RightsOfClients
from stratalog_node.serve.connections.context import ConnectionInfo
from support.requests_of_each_api import GROUP, TOPIC, codes
from support.serve_rig import ServeRig
from support.waiting import eventually
from unit.serve.test_fetch_waits import ColdDisk, fetch_of, fill
from unit.serve.test_rights_of_requests import (
    ALICE,
    GROUP_DENIED,
    TOPIC_DENIED,
    ask,
    cluster_rule,
    group_rule,
    guarded,
    topic_rule,
)

READS = (topic_rule(Operation.READ, "cold"), topic_rule(Operation.READ, "hot"))
AT_HOME = ConnectionInfo("10.0.0.1:5000", "localhost", 9092, principal=ALICE)


async def test_a_fetch_that_reads_from_a_disk_shows_nothing_of_a_topic_whose_right_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ServeRig(tmp_path, authorizer_class_name="stratalog") as rig:
        for rule in READS:
            rig.catalog.rights.authorizer.add(rule)
        cold, hot = await rig.shard_of("cold"), await rig.shard_of("hot")
        fill(rig, cold, 2)
        fill(rig, hot, 2)
        disk = ColdDisk(monkeypatch, "cold")
        client = rig.connect(info=AT_HOME)
        for revoked, left in ((READS[0], "hot"), (READS[1], "cold")):
            before = cold.work.fetched_bytes, hot.work.fetched_bytes
            disk.gate.clear()
            reads = disk.reads
            await client.write(fetch_of(client, "cold", "hot", max_bytes=50 << 20))
            await eventually(lambda reads=reads: disk.reads == reads + 1)  # type: ignore[misc]
            rig.catalog.rights.authorizer.remove(revoked)
            disk.gate.set()
            found = dict(zip(("cold", "hot"), await client.fetched(), strict=True))
            assert found[left].error_code == 0 and len(found[left].batches()) == 2
            (denied,) = found.keys() - {left}
            assert (found[denied].error_code, found[denied].batches()) == (TOPIC_DENIED, [])
            counted = cold.work.fetched_bytes - before[0], hot.work.fetched_bytes - before[1]
            assert counted[denied == "cold"] > 0 and counted[denied == "hot"] == 0, "what was not sent does not count"
            rig.catalog.rights.authorizer.add(revoked)
        await rig.nothing_is_held()


@pytest.mark.parametrize("comes", [True, False], ids=["records come", "its patience ends"])
async def test_a_fetch_that_waited_is_refused_where_the_right_ended_meanwhile(tmp_path: Path, comes: bool) -> None:
    async with ServeRig(tmp_path, authorizer_class_name="stratalog") as rig:
        rig.catalog.rights.authorizer.add(READS[1])
        shard = await rig.shard_of("hot")
        client = rig.connect(info=AT_HOME)
        await client.write(client.fetch_frame("hot", 0, max_wait_ms=60_000 if comes else 50, min_bytes=1))
        await eventually(lambda: client.connection.waiting_fetches == 1)
        rig.catalog.rights.authorizer.remove(READS[1])
        if comes:
            fill(rig, shard, 1)
            rig.turn.run()
        (found,) = await client.fetched()
        assert (found.error_code, found.batches()) == (TOPIC_DENIED, [])


class _Meanwhile:
    """The real thing, and something that happens after it has been done and before it is known."""

    def __init__(self, real: object, happens: Callable[[], None]) -> None:
        self._real = real
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Awaitable[Any]] = getattr(self._real, name)
        if not asyncio.iscoroutinefunction(real):
            return real

        async def done(*args: Any, **options: Any) -> Any:
            answer = await real(*args, **options)
            self._happens()
            return answer

        return done


@pytest.mark.parametrize("key", [9, 11, 14])
async def test_a_group_request_that_waited_is_refused_where_the_right_ended_meanwhile(key: int) -> None:
    async with guarded() as bench:
        authorizer = bench.catalog.rights.authorizer
        rules = (group_rule(Operation.READ), topic_rule(Operation.DESCRIBE))
        for rule in rules:
            authorizer.add(rule)
        rights = RightsOfClients(authorizer).of(ALICE, "10.0.0.1:5000")
        allowed = codes(await ask(bench, key, rights))
        assert GROUP_DENIED not in allowed
        groups = cast(Any, _Meanwhile(bench.services.groups, lambda: authorizer.remove(rules[0])))
        bench.services = replace(bench.services, groups=groups)
        assert GROUP_DENIED in codes(await ask(bench, key, rights))


async def test_a_consumer_whose_right_ends_while_its_heartbeat_is_written_is_refused() -> None:
    async with guarded() as bench:
        authorizer = bench.catalog.rights.authorizer
        needs = group_rule(Operation.READ, GROUP + "-consumers")
        for rule in (needs, topic_rule(Operation.DESCRIBE)):
            authorizer.add(rule)
        rights = RightsOfClients(authorizer).of(ALICE, "10.0.0.1:5000")
        assert codes(await ask(bench, 68, rights)) == [0]
        groups = cast(Any, _Meanwhile(bench.services.groups, lambda: None))
        groups.consumers = _Meanwhile(bench.services.groups.consumers, lambda: authorizer.remove(needs))
        bench.services = replace(bench.services, groups=groups)
        assert codes(await ask(bench, 68, rights)) == [GROUP_DENIED]


@pytest.mark.parametrize(("key", "needs"), [(19, cluster_rule(Operation.CREATE)), (20, cluster_rule(Operation.DELETE))])
async def test_a_request_about_many_topics_stops_where_its_right_ends(key: int, needs: Rule) -> None:
    async with guarded() as bench:
        authorizer = bench.catalog.rights.authorizer
        authorizer.add(needs)
        rights = RightsOfClients(authorizer).of(ALICE, "10.0.0.1:5000")
        if key == 19:
            one = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            asked: list[Any] = [one | {"name": name} for name in ("a", "b")]
        else:
            asked = [{"name": (await bench.topic(name)).name, "topic_id": None} for name in ("a", "b")]
        bench.services = replace(
            bench.services, meta=cast(Any, _Meanwhile(bench.services.meta, lambda: authorizer.remove(needs)))
        )
        assert codes(await ask(bench, key, rights, topics=asked)) == [0, TOPIC_DENIED]


async def test_shards_that_a_request_trims_later_are_refused_once_its_right_ended() -> None:
    async with guarded() as bench:
        authorizer = bench.catalog.rights.authorizer
        needs = topic_rule(Operation.DELETE)
        authorizer.add(needs)
        rights = RightsOfClients(authorizer).of(ALICE, "10.0.0.1:5000")
        topic = bench.catalog.topic(TOPIC)
        assert topic is not None
        for index in range(2):
            shard = bench.shard(topic, index)
            trim = shard.delete_records_before

            async def trimmed(offset: int, trim: Callable[[int], Awaitable[int]] = trim) -> int:
                done = await trim(offset)
                authorizer.remove(needs)
                return done

            shard.delete_records_before = trimmed  # type: ignore[method-assign]
        partitions = [{"partition_index": index, "offset": 0} for index in range(2)]
        answer = await ask(bench, 21, rights, topics=[{"name": TOPIC, "partitions": partitions}])
        assert codes(answer) == [0, TOPIC_DENIED]
