"""Alerts and dashboard over a real cluster, by a real Prometheus: every query finds series, every rule can be asked."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from stratalog_cli.cluster.plan import Role
from support.etcd_server import NO_ETCD, etcd_binary
from support.prometheus_server import MONITORING, NO_PROMETHEUS, Prometheus, prometheus_of, promtool, tool
from support.real_cluster import RealCluster, real_cluster
from support.waiting import eventually_sync

pytestmark = [
    pytest.mark.skipif(tool("prometheus") is None, reason=NO_PROMETHEUS),
    pytest.mark.skipif(etcd_binary() is None, reason=NO_ETCD),
]


WITH_FURTHER_DISKS = {"stratalog_directories_unusable"}
"""Only nodes with `data.dirs` have them."""
WITH_TLS = {"stratalog_tls_expires_seconds", "stratalog_tls_is_rejected"}
"""A process has these only with a certificate (`tests/clients/test_tls_clients.py`)."""


def queries() -> list[tuple[str, str]]:
    """(panel, query) of the dashboard, with all topics chosen."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return [
        (panel["title"], target["expr"].replace("$topic", ".*"))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:stratalog|process)_[a-z_]+", expression))


def work(cluster: RealCluster) -> None:
    """What a dashboard shows: something written, read by a group, and more written that it has not read."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(300):
        producer.produce("flights", value=b"v" * 500, partition=number % 2)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "departures", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["flights"])
    read = 0
    while read < 100:
        read += len(consumer.consume(100, 5))
    consumer.commit(asynchronous=False)
    consumer.close()


def test_every_query_of_the_dashboard_and_every_alert_finds_its_metrics(tmp_path: Path) -> None:
    with real_cluster(tmp_path) as cluster:
        cluster.make_topic("flights", 2)
        work(cluster)
        parts = [one for one in cluster.plan.parts if one.role in (Role.NODE, Role.META)]
        targets = [one.addresses["admin"] for one in parts]
        (tmp_path / "prometheus").mkdir()
        with prometheus_of(tmp_path / "prometheus", targets) as prometheus:
            eventually_sync(lambda: len(prometheus.series('up{job="stratalog"} == 1')) == len(targets), 60)
            empty: list[tuple[str, str]] = []

            def all_found() -> bool:
                empty[:] = [(panel, query) for panel, query in queries() if not prometheus.series(query)]
                return not empty

            assert len(queries()) > 30
            try:
                eventually_sync(all_found, 60)
            except AssertionError:
                raise AssertionError(f"no series: {empty}") from None
            known = set(prometheus.ask("label/__name__/values"))
            eventually_sync(lambda: all(rule["health"] == "ok" for rule in rules(prometheus)), 60)
            missing = {
                rule["name"]: names_in(rule["query"]) - known - WITH_TLS - WITH_FURTHER_DISKS
                for rule in rules(prometheus)
            }
            assert len(missing) > 20 and not {name: lacks for name, lacks in missing.items() if lacks}
            firing = {rule["name"] for rule in rules(prometheus) if rule["state"] == "firing"}
            assert not firing & {"StratalogDown", "StratalogNoMetaLeader", "StratalogShardsWithoutLeader"}

            (lag,) = prometheus.series('sum(stratalog_group_lag_records{group="departures"})')
            assert 0 < float(lag["value"][1]) <= 200
            (led,) = prometheus.series('sum(stratalog_topic_led_shards{topic="flights"})')
            assert led["value"][1] == "2", "each shard is told by the node that leads it, and by no other"

            cluster.kill(cluster.leader_of("flights"))
            eventually_sync(lambda: prometheus.series("sum(stratalog_topic_under_replicated_shards) > 0") != [], 60)
            eventually_sync(lambda: any(rule["state"] == "pending" for rule in rules(prometheus)), 60)
        for one in parts:
            if one.name not in cluster.down():
                with urllib.request.urlopen(f"http://{one.addresses['admin']}/metrics", timeout=30) as answer:
                    promtool("check", "metrics", given=answer.read().decode())
