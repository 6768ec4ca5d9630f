"""CreateTopics, DeleteTopics and CreatePartitions over the real meta service, as kafka-python reads them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stratalog.machines.copies.internal_topics import GROUP_LOG
from stratalog.model.commands.table_commands import CreateTopic
from stratalog.model.metadata import ChangeSet
from support.control_bench import ControlBench, control_bench


async def create(bench: ControlBench, version: int = 7, **topic: Any) -> Any:
    trial = topic.pop("validate_only", False)
    wanted = {"name": "orders", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    told = await bench.ask(19, version, topics=[wanted | topic], timeout_ms=5000, validate_only=trial)
    return told.topics[0]


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_made_and_shown_before_the_answer(version: int) -> None:
    async with control_bench() as bench:
        one = await create(bench, version, num_partitions=3, configs=[{"name": "retention.ms", "value": "1000"}])
        assert (one.error_code, one.error_message, one.name) == (0, None if version >= 1 else "", "orders")
        topic = bench.catalog.topic("orders")
        assert topic is not None
        assert (topic.shard_count, dict(topic.settings)) == (3, {"retention.ms": "1000"})
        if version >= 5:
            assert (one.num_partitions, one.replication_factor) == (3, 1)
            shown = {config.name: (config.value, config.config_source) for config in one.configs}
            assert shown["retention.ms"] == ("1000", 1)
            assert shown["cleanup.policy"] == ("delete", 5)
        if version >= 7:
            assert one.topic_id == topic.topic_id


async def test_counts_of_minus_one_take_the_defaults() -> None:
    async with control_bench(num_partitions=4) as bench:
        one = await create(bench, num_partitions=-1, replication_factor=-1)
        assert (one.error_code, one.num_partitions, one.replication_factor) == (0, 4, 1)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"name": "sp ace"}, 17),
        ({"name": ""}, 17),
        ({"num_partitions": 0}, 37),
        ({"num_partitions": -2}, 37),
        ({"replication_factor": 0}, 38),
        ({"replication_factor": 2}, 38),
        ({"num_partitions": -1, "assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 39),
        ({"configs": [{"name": "compression.type", "value": "zstd"}]}, 40),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, 40),
        ({"configs": [{"name": "retention.sm", "value": "5"}]}, 40),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, 40),
        ({"configs": [{"name": "retention.ms", "value": None}]}, 40),
        ({"configs": [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]}, 40),
    ],
)
async def test_what_cannot_be_honoured_is_refused_with_a_reason(wanted: dict[str, Any], code: int) -> None:
    async with control_bench() as bench:
        one = await create(bench, **wanted)
        assert one.error_code == code
        assert len(one.error_message) > 20
        assert list(bench.catalog.topics()) == []


async def test_a_topic_that_exists_is_not_made_again() -> None:
    async with control_bench() as bench:
        await create(bench)
        assert (await create(bench)).error_code == 36
        assert (await create(bench, validate_only=True)).error_code == 36


@pytest.mark.fault("topic-name-collides")
@pytest.mark.parametrize("version", range(2, 8))
@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    ("name", "code"),
    [("a_b.c", 17), ("a.b.c", 17), ("a_b_c", 17), ("a.b_c", 36), ("a-b-c", 0), ("a.b_cd", 0), ("a..b_c", 0)],
)
async def test_a_name_that_differs_only_in_dots_and_underscores_is_refused(
    version: int, validate_only: bool, name: str, code: int
) -> None:
    """As Kafka 4.3.1 answers."""
    async with control_bench() as bench:
        await bench.topic("a.b_c")
        one = await create(bench, version, name=name, validate_only=validate_only)
        assert one.error_code == code
        if code == 17:
            assert one.error_message.startswith(f"topic '{name}' collides with existing topic 'a.b_c'")
        assert len(list(bench.catalog.topics())) == 1 + (code == 0 and not validate_only)


@pytest.mark.fault("topic-name-collides")
async def test_a_name_is_free_again_once_the_topic_that_it_collided_with_is_deleted() -> None:
    async with control_bench() as bench:
        await bench.topic("a.b")
        assert (await create(bench, name="a_b")).error_code == 17
        await bench.ask(20, 5, topic_names=["a.b"], timeout_ms=5000)
        assert (await create(bench, name="a_b")).error_code == 0
        assert (await create(bench, name="a.b")).error_code == 17


async def test_validate_only_makes_nothing() -> None:
    async with control_bench() as bench:
        assert (await create(bench, validate_only=True)).error_code == 0
        assert list((await bench.meta.snapshot()).topics) == []


async def test_a_name_twice_in_one_request_is_refused_once_and_others_are_made() -> None:
    async with control_bench() as bench:
        wanted = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        told = await bench.ask(
            19,
            7,
            topics=[{"name": name, **wanted} for name in ("a", "b", "a")],
            timeout_ms=5000,
            validate_only=False,
        )
        assert [(topic.name, topic.error_code) for topic in told.topics] == [("a", 42), ("b", 0)]
        assert [topic.name for topic in bench.catalog.topics()] == ["b"]


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_deleted_topic_is_gone_before_the_answer(version: int) -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        names = ["orders", "never"]
        told = await bench.ask(
            20, version, topic_names=names, topics=[{"name": name} for name in names], timeout_ms=5000
        )
        assert [(one.name, one.error_code) for one in told.responses] == [("orders", 0), ("never", 3)]
        assert bench.catalog.topic("orders") is None
        if version >= 6:
            assert told.responses[0].topic_id == topic.topic_id


async def test_a_topic_is_deleted_by_its_id() -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders")
        told = await bench.ask(
            20,
            6,
            topics=[{"name": None, "topic_id": topic.topic_id}, {"name": None, "topic_id": UUID(int=9)}],
            timeout_ms=5000,
        )
        assert [(one.name, one.error_code) for one in told.responses] == [("orders", 0), (None, 100)]


async def test_an_internal_topic_is_kept() -> None:
    async with control_bench() as bench:
        await bench.group_log()
        told = await bench.ask(20, 6, topics=[{"name": GROUP_LOG}], timeout_ms=100)
        assert told.responses[0].error_code == 73
        assert bench.catalog.topic(GROUP_LOG) is not None


@pytest.mark.parametrize("name", [GROUP_LOG, "__transaction_state", "__stratalog_anything"])
async def test_a_name_that_is_the_services_own_is_not_given_to_a_client(name: str) -> None:
    async with control_bench() as bench:
        for trial in (True, False):
            one = await create(bench, name=name, configs=[], validate_only=trial)
            assert one.error_code == 17
            assert "reserved" in one.error_message
        assert list(bench.catalog.topics()) == []


async def test_names_of_others_that_begin_with_two_underscores_are_taken() -> None:
    async with control_bench() as bench:
        assert (await create(bench, name="__debezium-heartbeat.shop")).error_code == 0


async def test_an_internal_topic_gets_no_more_shards() -> None:
    async with control_bench() as bench:
        topic = await bench.group_log()
        for trial in (True, False):
            refused = await grow(bench, 50, name=GROUP_LOG, validate_only=trial)
            assert refused.error_code == 44
            assert "internal" in refused.error_message
        assert bench.catalog.topic(GROUP_LOG) == topic


async def grow(bench: ControlBench, count: int, version: int = 3, **more: Any) -> Any:
    trial = more.pop("validate_only", False)
    told = await bench.ask(
        37,
        version,
        topics=[{"name": "orders", "count": count, "assignments": None} | more],
        timeout_ms=5000,
        validate_only=trial,
    )
    return told.results[0]


@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows_and_never_shrinks(version: int) -> None:
    async with control_bench() as bench:
        topic = await bench.topic("orders", shards=2)
        assert (await grow(bench, 5, version)).error_code == 0
        known = bench.catalog.topic_by_id(topic.topic_id)
        assert known is not None
        assert known.shard_count == 5
        for count in (5, 4, 0, -1):
            refused = await grow(bench, count, version)
            assert refused.error_code == 37
            assert "5 partitions" in refused.error_message


async def test_growing_refuses_assignments_unknown_topics_and_too_many() -> None:
    async with control_bench() as bench:
        assert (await grow(bench, 5)).error_code == 3
        topic = await bench.topic("orders")
        assert (await grow(bench, 2, assignments=[{"broker_ids": [1]}])).error_code == 39
        assert (await grow(bench, 1_000_000)).error_code == 37
        assert (await grow(bench, 7, validate_only=True)).error_code == 0
        known = bench.catalog.topic_by_id(topic.topic_id)
        assert known is not None
        assert known.shard_count == 1


async def test_a_refusal_that_quotes_a_long_value_still_fits_an_old_string() -> None:
    async with control_bench() as bench:
        one = await create(bench, 4, configs=[{"name": "retention.ms", "value": "9é" * 10_000}])
        assert one.error_code == 40
        assert 20 < len(one.error_message) <= 2_000


async def test_more_shards_than_a_topic_may_have_are_refused() -> None:
    async with control_bench() as bench:
        one = await create(bench, num_partitions=1_000_000)
        assert one.error_code == 44
        assert "1000000" in one.error_message


# Topics of another node -----------------------------------------------------------------------------------------
_NEW = {"resource_type": 2, "resource_name": "new"}


@pytest.mark.fault("topic-through-node-changed")
@pytest.mark.parametrize(
    ("key", "version", "asked"),
    [
        (20, 6, {"topics": [{"name": "new"}], "timeout_ms": 1000}),
        (37, 3, {"topics": [{"name": "new", "count": 2, "assignments": None}], "timeout_ms": 1000}),
        (32, 4, {"resources": [{**_NEW, "configuration_keys": ["retention.ms"]}]}),
        (33, 2, {"resources": [{**_NEW, "configs": [{"name": "retention.ms", "value": "1000"}]}]}),
        (
            44,
            1,
            {"resources": [{**_NEW, "configs": [{"name": "retention.ms", "value": "1000", "config_operation": 0}]}]},
        ),
    ],
)
async def test_a_topic_that_was_made_through_another_node_just_now_is_known_by_the_time_it_counts(
    key: int, version: int, asked: dict[str, Any]
) -> None:
    async with control_bench() as bench:
        late: list[ChangeSet] = []
        apply, read_version = bench.catalog.apply, bench.meta.read_version
        reads = 0

        async def catches_up() -> int:
            nonlocal reads
            reads += 1
            version = await read_version()
            bench.catalog.apply = apply  # type: ignore[method-assign]
            for change_set in late:
                apply(change_set)
            return version

        bench.catalog.apply = late.append  # type: ignore[method-assign]
        bench.meta.read_version = catches_up  # type: ignore[method-assign]
        await bench.meta.perform(CreateTopic("new", 1, 1, {}))
        await bench.shown(lambda: bool(late))
        flags = {32: ("include_synonyms", "include_documentation"), 20: ()}.get(key, ("validate_only",))
        told = await bench.ask(key, version, **asked, **dict.fromkeys(flags, False))
        answers = getattr(told, "responses", None) or told.results
        assert [one.error_code for one in answers] == [0]
        assert reads == 1
