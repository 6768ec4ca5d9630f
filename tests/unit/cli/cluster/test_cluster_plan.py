"""The plan of a cluster on one machine, from the options alone, and from an existing cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.model.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from stratalog_cli.cluster.plan import (
    MAX_NODES,
    OWN_SETTINGS,
    Asked,
    MetaStoreKind,
    Plan,
    Programs,
    Role,
    command_of,
    first_plan,
    next_plan,
    variables_of,
)

PROGRAMS = Programs(("stratalog",), Path("/usr/bin/etcd"))
HERE = Path("/data/c")


def plan(*, has_etcd: bool = True, **asked: object) -> Plan:
    return first_plan(Asked(**asked), has_etcd=has_etcd)  # type: ignore[arg-type]


def command(plan: Plan, name: str, programs: Programs = PROGRAMS) -> list[str]:
    return command_of(plan.part(name), plan, HERE, programs)


def test_three_of_each_are_started_in_the_order_in_which_they_need_each_other() -> None:
    made = plan()
    assert [part.name for part in made.parts] == [f"{role}-{n}" for role in ("etcd", "meta", "node") for n in (1, 2, 3)]
    assert made.bootstrap == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert made.part("node-1").addresses["admin"] == "127.0.0.1:9644", "whom the other commands ask by default"


def test_without_etcd_one_meta_service_keeps_the_metadata() -> None:
    made = plan(has_etcd=False)
    assert [part.name for part in made.parts] == ["meta-1", "node-1", "node-2", "node-3"]
    assert command(made, "meta-1")[:7] == [
        "stratalog", "meta", "start", "--listen", made.part("meta-1").addresses["http"], "--data", "/data/c/meta-1"
    ]  # fmt: skip


@pytest.mark.parametrize("base", [1, 20_000, 65_436])
def test_no_port_is_given_twice_and_all_lie_in_the_block(base: int) -> None:
    made = plan(nodes=MAX_NODES, port_base=base)
    ports = [int(address.rpartition(":")[2]) for part in made.parts for address in part.addresses.values()]
    assert len(set(ports)) == len(ports)
    assert min(ports) == base and max(ports) < base + 100
    usual = [address for part in plan(nodes=MAX_NODES).parts for address in part.addresses.values()]
    assert len(set(usual)) == len(usual)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"nodes": MAX_NODES + 1}, "--nodes 21"),
        ({"port_base": 0}, "--port-base 0"),
        ({"port_base": 65_437}, "100 ports"),
        ({"settings": ("log.segment.bytes",)}, "expected KEY=VALUE"),
        *(({"settings": (f"{key}=1",)}, "each part has its own") for key in OWN_SETTINGS),
    ],
)
def test_what_cannot_be_is_refused(asked: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        plan(**asked)


def test_a_node_is_reported_who_it_is_whom_to_ask_and_what_was_set() -> None:
    made = plan(nodes=2, bucket="/b", settings=("log.segment.bytes=4096",))
    words = " ".join(command(made, "node-2"))
    metas = ",".join(f"http://{meta.addresses['http']}" for meta in made.of(Role.META))
    assert f"node start --id 2 --data /data/c/node-2 --listen 127.0.0.1:9093 --meta {metas} --set" in words
    assert "--set log.segment.bytes=4096" in words and "--set metrics.listen=127.0.0.1:9645" in words
    assert "--set default.replication.factor=2" in words, "as many as there are nodes, three at most"
    assert "default.replication.factor=1" in command(plan(settings=("default.replication.factor=1",)), "node-1")


def test_the_bucket_is_on_no_command_line_because_its_url_may_hold_a_secret() -> None:
    made = plan(bucket="s3://b/p?secret_access_key=hidden")
    for part in made.parts:
        assert "hidden" not in " ".join(command(made, part.name)), part.name
        is_told = part.role is not Role.ETCD
        assert variables_of(part, made) == ({"STRATALOG_BUCKET": made.choices.bucket} if is_told else {})
        assert variables_of(part, plan()) == {}


def test_etcd_members_know_each_other_and_the_meta_services_know_them() -> None:
    made = plan(port_base=20_000)
    words = command(made, "etcd-2")
    assert words[0] == "/usr/bin/etcd" and words[words.index("--data-dir") + 1] == "/data/c/etcd-2"
    peers = "etcd-1=http://127.0.0.1:20070,etcd-2=http://127.0.0.1:20071,etcd-3=http://127.0.0.1:20072"
    assert words[words.index("--initial-cluster") + 1] == peers
    assert "etcd://127.0.0.1:20060,127.0.0.1:20061,127.0.0.1:20062" in command(made, "meta-3")


def test_a_cluster_whose_etcd_is_gone_names_what_to_do() -> None:
    with pytest.raises(NotFound, match=r"no safe etcd here any more: put one of version 3\.5\.21 or later on PATH"):
        command(plan(), "etcd-1", Programs(("stratalog",), None))


def test_a_later_start_continues_with_ports_settings_and_bucket_and_takes_what_is_new() -> None:
    known = plan(port_base=20_000, bucket="/b", settings=("log.segment.bytes=4096", "log.roll.ms=7"))
    assert next_plan(known, Asked()) == known
    changed = next_plan(known, Asked(nodes=3, port_base=20_000, bucket="/c", settings=("log.roll.ms=8",)))
    assert changed.parts == known.parts and changed.choices.bucket == "/c"
    assert changed.choices.settings == known.choices.settings | {"log.roll.ms": "8"}
    assert next_plan(plan(has_etcd=False), Asked()).choices.store is MetaStoreKind.ROCKSDB, "though etcd may be there"


@pytest.mark.parametrize(
    ("asked", "step"),
    [
        (Asked(nodes=4), "stratalog cluster add"),
        (Asked(nodes=2), "stop --part NAME"),
        (Asked(port_base=21_000), "leave --port-base out"),
    ],
)
def test_a_later_start_that_asks_for_another_shape_is_refused_with_the_next_step(asked: Asked, step: str) -> None:
    with pytest.raises(Conflict, match=step):
        next_plan(plan(port_base=20_000), asked)


def test_a_node_that_is_added_comes_after_all_others_until_there_are_enough() -> None:
    grown, part = plan(nodes=MAX_NODES - 1).with_one_more_node()
    assert part.name == "node-20" and grown.bootstrap.endswith(f",{part.main_address}")
    assert grown.parts[:-1] == plan(nodes=MAX_NODES - 1).parts
    with pytest.raises(LimitExceeded, match="20 nodes are the most"):
        grown.with_one_more_node()


def test_an_unknown_part_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotFound, match=r"no part 'node-9': it has etcd-1, .*node-3"):
        plan().part("node-9")
