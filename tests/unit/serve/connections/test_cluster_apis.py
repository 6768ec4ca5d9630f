"""ApiVersions, FindCoordinator, InitProducerId, DescribeCluster and DescribeLogDirs, as kafka-python reads them."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from stratalog.kafka.error_codes import ErrorCode
from stratalog.model.commands.table_commands import NoteLives, RegisterNode
from stratalog.model.errors import Unavailable
from stratalog.model.ids import ShardKey
from stratalog.model.metadata import NodeInfo
from stratalog_node.groups.placement import shard_of
from stratalog_node.serve.api import control_apis
from stratalog_node.serve.api.p18_api_versions import fallback_response
from stratalog_node.serve.connections.control_state import PRODUCER_ID_BLOCK
from stratalog_node.serve.connections.registry import Api, Registry
from stratalog_node.shards.flush.shard_lookup import DiskUsage, FurtherUsage
from support.control_bench import ControlBench, control_bench
from support.kafka_oracle import SERVED, UNKNOWN_TO_IT, decode_response


@pytest.mark.parametrize("version", range(4))
async def test_exactly_what_is_in_the_registry_is_advertised(version: int) -> None:
    async with control_bench() as bench:
        told = await bench.ask(18, version, client_software_name="apache-kafka-java", client_software_version="4.0.0")
        assert told.error_code == 0
        assert [(one.api_key, one.min_version, one.max_version) for one in told.api_keys] == [
            (api.key, api.min_version, api.max_version) for api in bench.registry.all()
        ]


def test_every_control_api_serves_the_versions_the_codec_was_proven_for() -> None:
    for api in control_apis():
        assert (SERVED | UNKNOWN_TO_IT)[api.key] == (api.min_version, api.max_version), api.name


def test_an_unsupported_version_is_answered_in_version_0_with_the_list() -> None:
    registry = Registry(
        [Api(0, "Produce", 3, 11, None, advertised_min=0, needs=()), Api(18, "ApiVersions", 0, 3, None, needs=())]
    )
    told = decode_response(18, 0, fallback_response(registry.advertised(), 42))
    assert (told.header.correlation_id, told.error_code) == (42, 35)
    # Produce is advertised from 0, or librdkafka turns compression off (trap 1).
    assert [(one.api_key, one.min_version, one.max_version) for one in told.api_keys] == [(0, 0, 11), (18, 0, 3)]


@pytest.mark.parametrize(("name", "release"), [("", "1"), ("x", ""), ("-x", "1"), ("x", "1."), ("x y", "1")])
async def test_a_bad_software_name_is_an_invalid_request(name: str, release: str) -> None:
    async with control_bench() as bench:
        answer = await bench.answer(18, 3, client_software_name=name, client_software_version=release)
        assert int.from_bytes(answer[8:10], "big") == 42


OTHER = NodeInfo(2, "storage-2", "other.example", 9192)


async def of_two_nodes(bench: ControlBench) -> dict[int, str]:
    """The group log over two nodes; of each one a group that it coordinates."""
    await bench.meta.perform(RegisterNode(OTHER))
    topic = await bench.group_log(shards=4)
    await bench.shown(lambda: bench.catalog.node(2) is not None)
    groups: dict[int, str] = {}
    for number in range(100):
        led = bench.catalog.leader_of(ShardKey(topic.topic_id, shard_of(f"group-{number}", 4)))
        assert led is not None
        groups.setdefault(led[0], f"group-{number}")
    assert set(groups) == {1, 2}
    return groups


async def lose(bench: ControlBench, node_id: int) -> None:
    """Its lease ends."""
    node = bench.catalog.node(node_id)
    assert node is not None
    await bench.meta.perform(NoteLives(lost=(node.life,)))  # type: ignore[arg-type]  # the service's own command
    await bench.shown(lambda: not bench.catalog.is_alive(node_id))


@pytest.mark.parametrize("version", range(7))
async def test_a_group_is_coordinated_by_the_leader_of_its_shard_on_whatever_node(version: int) -> None:
    async with control_bench() as bench:
        groups = await of_two_nodes(bench)
        found = {}
        for node_id, group in groups.items():
            told = await bench.ask(10, version, key=group, key_type=0, coordinator_keys=[group, "", group])
            one = told.coordinators[0] if version >= 4 else told
            found[node_id] = (one.error_code, one.node_id, one.host, one.port)
            if version >= 4:
                assert [(each.key, each.error_code) for each in told.coordinators] == [(group, 0), ("", 24)]
        assert found == {1: (0, 1, "advertised.example", 9092), 2: (0, 2, "other.example", 9192)}


async def test_keys_of_several_nodes_are_answered_each_with_its_own() -> None:
    async with control_bench() as bench:
        groups = await of_two_nodes(bench)
        told = await bench.ask(10, 6, key_type=0, coordinator_keys=list(groups.values()))
        assert {one.key: one.node_id for one in told.coordinators} == {group: node for node, group in groups.items()}


@pytest.mark.parametrize("version", [0, 3, 6])
async def test_a_group_whose_shard_has_no_living_leader_has_no_coordinator_for_now(version: int) -> None:
    async with control_bench() as bench:
        groups = await of_two_nodes(bench)
        await lose(bench, 2)
        for node_id, code in ((1, 0), (2, 15)):
            told = await bench.ask(10, version, key=groups[node_id], key_type=0, coordinator_keys=[groups[node_id]])
            one = told.coordinators[0] if version >= 4 else told
            assert (one.error_code, one.node_id) == (code, node_id if code == 0 else -1)


@pytest.mark.fault("node-killed", "client-asks-node-node")
async def test_clients_are_not_told_of_nodes_that_are_not_alive() -> None:
    async with control_bench() as bench:
        await of_two_nodes(bench)
        orders = await bench.topic("orders", shards=2)

        async def told() -> tuple[list[int], list[int], dict[int, tuple[int, int, list[int]]]]:
            cluster = await bench.ask(60, 1, include_cluster_authorized_operations=False, endpoint_type=1)
            metadata = await bench.ask(3, 9, topics=[{"name": orders.name}], allow_auto_topic_creation=False)
            led = {
                one.partition_index: (one.error_code, one.leader_id, list(one.offline_replicas))
                for one in metadata.topics[0].partitions
            }
            return [one.broker_id for one in cluster.brokers], [one.node_id for one in metadata.brokers], led

        brokers, listed, led = await told()
        assert brokers == listed == [1, 2]
        assert sorted(led.values()) == [(0, 1, []), (0, 2, [])]
        await lose(bench, 2)
        brokers, listed, led = await told()
        assert brokers == [1]
        assert listed == [1, 2], (
            "for a moment: librdkafka loses a new leader with a broker that goes in the same answer"
        )
        nodes_alone = await bench.ask(3, 9, topics=[], allow_auto_topic_creation=False)
        assert [one.node_id for one in nodes_alone.brokers] == [1], "who lists groups asks all that are listed"
        assert sorted(led.values()) == [(0, 1, []), (5, -1, [2])]
        bench.services.control.recently_dead(bench.catalog).linger_s = 0.0
        brokers, listed, led = await told()
        assert brokers == listed == [1]
        assert sorted(led.values()) == [(0, 1, []), (5, -1, [2])]
        node = bench.catalog.node(2)
        assert node is not None
        await bench.meta.perform(NoteLives(heard=(node.life,)))  # type: ignore[arg-type]
        await bench.shown(lambda: bench.catalog.is_alive(2))
        assert (await told())[1] == [1, 2]


@pytest.mark.parametrize("version", range(1, 7))
async def test_transactions_have_no_coordinator_and_say_why(version: int) -> None:
    async with control_bench() as bench:
        for key_type, code in ((1, 53), (7, 42)):
            told = await bench.ask(10, version, key="tx", key_type=key_type, coordinator_keys=["tx"])
            one = told.coordinators[0] if version >= 4 else told
            assert (one.error_code, one.node_id) == (code, -1)
            assert len(one.error_message) > 20


@pytest.mark.parametrize("version", range(5))
async def test_producers_get_unused_ids(version: int) -> None:
    async with control_bench() as bench:
        seen = set()
        for _ in range(3):
            told = await bench.ask(22, version, transactional_id=None, transaction_timeout_ms=1000)
            assert (told.error_code, told.producer_epoch) == (0, 0)
            seen.add(told.producer_id)
        assert len(seen) == 3
        refused = await bench.ask(22, version, transactional_id="tx", transaction_timeout_ms=1000)
        assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (35, -1, -1)


async def test_producer_ids_are_taken_in_blocks_and_survive_many_askers() -> None:
    async with control_bench() as bench:
        ids = bench.services.control.producer_ids
        taken = await asyncio.gather(*(ids.next(bench.meta) for _ in range(2 * PRODUCER_ID_BLOCK + 1)))
        assert len(set(taken)) == 2 * PRODUCER_ID_BLOCK + 1
        assert min(taken) > 0


@pytest.mark.fault("two-nodes-two-lives")
async def test_producers_begin_while_the_meta_service_is_away() -> None:
    async with control_bench() as bench:
        ids = bench.services.control.producer_ids
        ids.fill(bench.meta)
        filling = ids._filling
        assert filling is not None
        await filling
        perform = bench.meta.perform

        async def away(_: object) -> NoReturn:
            raise Unavailable("the meta service is away")

        bench.meta.perform = away  # type: ignore[method-assign, assignment]
        given = [await ids.next(bench.meta) for _ in range(PRODUCER_ID_BLOCK)]
        with pytest.raises(Unavailable):
            await ids.next(bench.meta)
        bench.meta.perform = perform  # type: ignore[method-assign]
        given += [await ids.next(bench.meta) for _ in range(PRODUCER_ID_BLOCK + 1)]
        assert len(set(given)) == len(given)
        await ids.close()


async def test_no_producer_id_to_be_had_is_a_retriable_error() -> None:
    async with control_bench() as bench:

        async def away(_: object) -> NoReturn:
            raise Unavailable("the meta service is away")

        bench.meta.perform = away  # type: ignore[method-assign, assignment]
        told = await bench.ask(22, 4, transactional_id=None, transaction_timeout_ms=1000)
        assert told.error_code == 15


@pytest.mark.parametrize("version", range(2))
async def test_the_cluster_is_described(version: int) -> None:
    async with control_bench() as bench:
        told = await bench.ask(60, version, include_cluster_authorized_operations=True, endpoint_type=1)
        assert (told.error_code, told.cluster_id, told.controller_id) == (0, bench.services.cluster_id, 1)
        assert [(b.broker_id, b.host, b.port, b.rack) for b in told.brokers] == [(1, "advertised.example", 9092, "a")]


async def test_controllers_are_not_exposed() -> None:
    async with control_bench() as bench:
        told = await bench.ask(60, 1, include_cluster_authorized_operations=False, endpoint_type=2)
        assert told.error_code == 114
        assert list(told.brokers) == []


async def test_shards_of_other_nodes_are_not_in_this_ones_directory() -> None:
    async with control_bench() as bench:
        await of_two_nodes(bench)
        orders = await bench.topic("orders", shards=2)
        led = [bench.catalog.leader_of(ShardKey(orders.topic_id, shard)) for shard in (0, 1)]
        (mine,) = [shard for shard, one in enumerate(led) if one is not None and one[0] == 1]
        for topics in (None, [{"topic": "orders", "partitions": [0, 1]}]):
            (told,) = (await bench.ask(35, 4, topics=topics)).results
            (listed,) = [topic for topic in told.topics if topic.name == "orders"]
            assert [one.partition_index for one in listed.partitions] == [mine]
        bench.shard(orders, 1 - mine).times = [1]
        (told,) = (await bench.ask(35, 4, topics=[{"topic": "orders", "partitions": [1 - mine]}])).results
        assert [len(topic.partitions) for topic in told.topics] == [1], "what it once led is still here"


@pytest.mark.fault("data-directory-failed")
@pytest.mark.parametrize("version", range(1, 5))
async def test_each_data_directory_is_reported_and_a_failed_one_with_an_error(version: int) -> None:
    async with control_bench() as bench:
        orders = await bench.topic("orders")
        shard = bench.shard(orders, 0)
        shard.times, shard.moved = [1] * 5, {"/hdd": 300}
        bench.further_disks = [
            FurtherUsage(DiskUsage("/hdd", 9_000_000, 8_000_000), is_usable=True),
            FurtherUsage(DiskUsage("/gone", -1, -1), is_usable=False),
        ]
        first, hdd, gone = (await bench.ask(35, version, topics=None)).results
        assert [(one.log_dir, one.error_code) for one in (first, hdd, gone)] == [
            ("/data/node/segments", 0),
            ("/hdd", 0),
            ("/gone", ErrorCode.KAFKA_STORAGE_ERROR),
        ]
        sizes = [[p.partition_size for topic in one.topics for p in topic.partitions] for one in (first, hdd, gone)]
        assert sizes == [[200], [300], []]
        if version >= 4:
            assert (hdd.total_bytes, gone.total_bytes) == (9_000_000, -1)


@pytest.mark.parametrize("version", range(1, 5))
async def test_local_sizes_and_the_disk_are_reported(version: int) -> None:
    async with control_bench() as bench:
        orders = await bench.topic("orders", shards=2)
        await bench.topic("other")
        bench.shard(orders, 1).times = [1] * 5
        (everything,) = (await bench.ask(35, version, topics=None)).results
        assert everything.log_dir == "/data/node/segments"
        assert [
            (topic.name, [(p.partition_index, p.partition_size) for p in topic.partitions])
            for topic in everything.topics
        ] == [("orders", [(0, 0), (1, 500)]), ("other", [(0, 0)])]
        if version >= 4:
            assert (everything.total_bytes, everything.usable_bytes) == (1_000_000, 400_000)
        (some,) = (
            await bench.ask(
                35,
                version,
                topics=[{"topic": "orders", "partitions": [1, 1, 9]}, {"topic": "never", "partitions": [0]}],
            )
        ).results
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in some.topics] == [("orders", [1])]
