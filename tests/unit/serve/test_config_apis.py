"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, as kafka-python reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stratalog.machines.copies.internal_topics import GROUP_LOG
from support.control_bench import ControlBench, control_bench

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND = 0, 1, 2


async def described(
    bench: ControlBench, version: int, kind: int, name: str, keys: list[str] | None = None, **flags: bool
) -> Any:
    told = await bench.ask(
        32,
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configuration_keys": keys}],
        **{"include_synonyms": False, "include_documentation": False} | flags,
    )
    return told.results[0]


async def altered(bench: ControlBench, name: str, *changes: tuple[str, int, str | None], **more: Any) -> Any:
    told = await bench.ask(
        44,
        more.get("version", 1),
        resources=[
            {
                "resource_type": more.get("kind", TOPIC),
                "resource_name": name,
                "configs": [{"name": k, "config_operation": op, "value": value} for k, op, value in changes],
            }
        ],
        validate_only=more.get("validate_only", False),
    )
    return told.responses[0]


@pytest.mark.parametrize("version", range(1, 5))
async def test_a_topics_settings_say_their_value_and_source(version: int) -> None:
    async with control_bench(log_retention_ms=5_000) as bench:
        await bench.topic("orders", **{"segment.bytes": "1000"})
        told = await described(bench, version, TOPIC, "orders", include_synonyms=True, include_documentation=True)
        assert (told.error_code, told.resource_type, told.resource_name) == (0, TOPIC, "orders")
        values = {one.name: one for one in told.configs}
        assert (values["segment.bytes"].value, values["segment.bytes"].config_source) == ("1000", 1)
        assert (values["retention.ms"].value, values["retention.ms"].config_source) == ("5000", 4)
        assert (values["cleanup.policy"].value, values["cleanup.policy"].config_source) == ("delete", 5)
        assert not values["segment.bytes"].is_sensitive
        assert not values["segment.bytes"].read_only
        chain = [(s.name, s.source) for s in values["retention.ms"].synonyms]
        assert chain == [("log.retention.ms", 4), ("log.retention.ms", 5)]
        if version >= 3:
            assert values["segment.bytes"].config_type in (3, 5)
            assert len(values["segment.bytes"].documentation) > 10


async def test_only_the_requested_keys_are_returned() -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        told = await described(bench, 4, TOPIC, "orders", ["retention.ms", "no.such.key"])
        assert [one.name for one in told.configs] == ["retention.ms"]
        assert list(told.configs[0].synonyms) == []
        assert told.configs[0].documentation is None


async def test_this_nodes_settings_are_returned_and_read_only() -> None:
    async with control_bench(num_partitions=7) as bench:
        told = await described(bench, 4, BROKER, "1", ["num.partitions", "node.id"])
        assert {one.name: (one.value, one.read_only) for one in told.configs} == {
            "num.partitions": ("7", True),
            "node.id": ("1", True),
        }
        assert list((await described(bench, 4, BROKER, "")).configs) == []
        assert (await described(bench, 4, BROKER, "2")).error_code == 42


async def test_settings_of_what_is_unknown_are_refused() -> None:
    async with control_bench() as bench:
        assert (await described(bench, 4, TOPIC, "never")).error_code == 3
        assert (await described(bench, 4, GROUP, "g")).error_code == 42


@pytest.mark.parametrize("version", (0, 1))
async def test_single_settings_change_and_the_others_stay(version: int) -> None:
    async with control_bench() as bench:
        await bench.topic("orders", **{"segment.bytes": "1000"})
        one = await altered(bench, "orders", ("retention.ms", SET, "77"), version=version)
        assert (one.error_code, one.resource_name) == (0, "orders")
        assert dict(bench.catalog.topic("orders").settings) == {  # type: ignore[union-attr]
            "segment.bytes": "1000",
            "retention.ms": "77",
        }
        await altered(bench, "orders", ("segment.bytes", DELETE, None), version=version)
        assert dict(bench.catalog.topic("orders").settings) == {"retention.ms": "77"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("compression.type", SET, "lz4")], 40),
        ([("cleanup.policy", SET, "compact")], 40),
        ([("cleanup.policy", APPEND, "compact")], 40),
        ([("no.such.key", SET, "1")], 40),
        ([("retention.ms", SET, "soon")], 40),
        ([("retention.ms", SET, None)], 40),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], 42),
        ([("retention.ms", SET, "1"), ("segment.bytes", SET, "-5")], 40),
    ],
)
async def test_a_change_that_cannot_be_honoured_changes_nothing(
    changes: list[tuple[str, int, str | None]], code: int
) -> None:
    async with control_bench() as bench:
        await bench.topic("orders", **{"segment.bytes": "1000"})
        one = await altered(bench, "orders", *changes)
        assert one.error_code == code
        assert one.error_message
        assert dict((await bench.meta.snapshot()).topics[0].settings) == {"segment.bytes": "1000"}


async def test_compression_by_the_producer_is_the_one_value_taken() -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        assert (await altered(bench, "orders", ("compression.type", SET, "producer"))).error_code == 0


async def test_validate_only_changes_nothing() -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        assert (await altered(bench, "orders", ("retention.ms", SET, "5"), validate_only=True)).error_code == 0
        assert dict((await bench.meta.snapshot()).topics[0].settings) == {}


async def test_concurrent_changes_lose_nothing_of_each_other() -> None:
    async with control_bench() as bench:
        await bench.topic("orders")
        keys = ["retention.ms", "segment.ms", "retention.bytes", "max.message.bytes", "segment.bytes"]
        await asyncio.gather(*(altered(bench, "orders", (key, SET, "5000")) for key in keys))
        assert set((await bench.meta.snapshot()).topics[0].settings) == set(keys)


async def test_a_nodes_settings_cannot_be_altered() -> None:
    async with control_bench() as bench:
        assert (await altered(bench, "1", ("num.partitions", SET, "5"), kind=BROKER)).error_code == 42
        assert (await altered(bench, "g", ("x", SET, "5"), kind=GROUP)).error_code == 42
        assert (await altered(bench, "never", ("retention.ms", SET, "5"))).error_code == 3


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_that_was_set(version: int) -> None:
    async with control_bench() as bench:
        await bench.topic("orders", **{"segment.bytes": "1000"})
        resource = {
            "resource_type": TOPIC,
            "resource_name": "orders",
            "configs": [{"name": "retention.ms", "value": "9"}],
        }
        told = await bench.ask(33, version, resources=[resource], validate_only=False)
        assert told.responses[0].error_code == 0
        assert dict(bench.catalog.topic("orders").settings) == {"retention.ms": "9"}  # type: ignore[union-attr]
        twice = await bench.ask(33, version, resources=[resource, resource], validate_only=False)
        assert [one.error_code for one in twice.responses] == [42]


@pytest.mark.parametrize("is_trial", [True, False])
async def test_settings_of_an_internal_topic_are_fixed(is_trial: bool) -> None:
    async with control_bench() as bench:
        topic = await bench.group_log()
        one = await altered(bench, GROUP_LOG, ("segment.bytes", SET, "1000"), validate_only=is_trial)
        assert one.error_code == 44
        assert "internal" in one.error_message
        resource = {
            "resource_type": TOPIC,
            "resource_name": GROUP_LOG,
            "configs": [{"name": "segment.bytes", "value": "1000"}],
        }
        told = await bench.ask(33, 2, resources=[resource], validate_only=is_trial)
        assert told.responses[0].error_code == 44
        assert bench.catalog.topic(GROUP_LOG) == topic
        assert topic.settings["retention.ms"] == "-1"
