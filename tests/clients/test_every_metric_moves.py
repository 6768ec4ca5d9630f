"""Every metric that a node exports moves in a test (F88): on a real node with real faults, or where ELSEWHERE says."""

from __future__ import annotations

import json
import resource
import socket
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.fault_proxy import FaultProxy, Latency, LostAnswer, Rule, ServerError, proxy_in_thread
from support.metric_history import MetricHistory
from support.node_process import NodeProcess
from support.s3_servers import S3Server, moto_server
from support.waiting import eventually_sync

SETTINGS: dict[str, Any] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "flush.interval.ms": 10,
    "log.retention.check.interval.ms": 50,
    "max.connections.per.ip": 12,
    "remote.upload.interval.ms": 20,
    "remote.upload.timeout.ms": 300,
    "remote.orphan.grace.ms": 2000,
    "remote.orphan.sweep.interval.ms": 100,
    "remote.delete.delay.ms": 0,
    "remote.read.unread.ttl.ms": 60,
    "remote.read.window.min.bytes": 16384,
    "remote.read.window.max.bytes": 65536,
    "remote.read.cache.bytes": 65536,
    "meta.snapshot.interval.ms": 100,
}

_CLAIMS = "tests/unit/tier/test_claims_of_epochs.py"
_COLD_READER = "tests/unit/tier/cold/test_cold_reader.py"
_COLD_MEMORY = "tests/unit/tier/cold/test_cold_memory.py"
_TIER_FAULTS = "tests/unit/tier/test_tier_faults.py"
_RARE = "tests/clients/test_metrics_of_rare_faults.py"
_GROUP_LOG = "tests/unit/groups/test_group_log_keeping.py"
_FOLLOWING = "tests/unit/replication/test_following.py"
_SEALED_READS = "tests/unit/serve/test_sealed_reads.py"
_READ_REPLICAS = "tests/unit/node/test_reads_from_replicas.py"
_PEER_READS = "tests/unit/node/test_reads_from_peers.py"
_TABLES = "tests/unit/node/test_producer_tables_between_nodes.py"
_COPIES = "tests/unit/node/test_copy_repair_of_nodes.py"
_MOUNTS = "tests/unit/node/test_mounted_data_sets.py"
_DAMAGED = "tests/unit/node/test_damaged_replicas.py"
_IN_TROUBLE = "tests/unit/node/test_failing_followers.py"
_PEERS = "tests/unit/replication/test_peers.py"
_REPLICA_FETCHES = "tests/unit/serve/replicas/test_replica_fetches.py"
_BACKUPS = "tests/unit/meta/test_bucket_backups.py"
_HTTP_PORT = "tests/unit/telemetry/test_http_port.py"
_HTTP_PLACES = "tests/unit/telemetry/test_http_port_places.py"
_REGISTRY = "tests/unit/telemetry/test_metrics_registry.py"
_DISK_WATCH = "tests/unit/shards/copies/test_disk_watch.py"
_MEASURES = "tests/unit/node/test_measures.py"
_AUDIT_LOG = "tests/unit/telemetry/test_audit_log.py"
_QUOTAS = "tests/unit/serve/connections/test_quotas_of_connections.py"
_HANDSHAKES = "tests/unit/node/test_handshakes_of_all_ports.py"
_MOUNT_UPLOADS = "tests/unit/node/test_uploads_of_mounts.py"
_PACKING = "tests/unit/tier/uploads/test_chunks_packed_at_upload.py"
_FIND = ("tests/unit/cli/records/test_find_command.py", '"searches", "records", "range_reads", "offsets_read"')

# What cannot be had on demand from outside: metric -> (the test that moves it, through which field of a stat object).
ELSEWHERE: dict[str, tuple[str, str]] = {
    "stratalog_catalog_reloads_total": ("tests/unit/shards/catalog/test_catalog.py", "stats.reloads == 1"),
    "stratalog_disk_health_is_stuck": (_DISK_WATCH, "stats.is_stuck, watched.watch.stats.stuck_times) == (1, 1)"),
    "stratalog_disk_health_stuck_times_total": (_DISK_WATCH, "stats.stuck_times) == (1, 1)"),
    "stratalog_disk_health_oldest_call_seconds": (_DISK_WATCH, "stats.oldest_call_ms == STALL_MS - 1"),
    "stratalog_replication_followed_segments": (_FOLLOWING, "stats.followed_segments > 0"),
    "stratalog_replication_rounds_total": (_FOLLOWING, "stats.rounds"),
    "stratalog_replication_fetched_bytes_total": (_FOLLOWING, "stats.fetched_bytes == "),
    "stratalog_replication_refused_ranges_total": (_FOLLOWING, "stats.refused_ranges == 1"),
    "stratalog_replication_connections_lost_total": (_FOLLOWING, "stats.connections_lost >= 5"),
    "stratalog_replication_promised_fences_total": (_FOLLOWING, "stats.promised_fences == 1"),
    "stratalog_replication_proven_copies_total": (_FOLLOWING, "stats.proven_copies > 0"),
    "stratalog_replication_catch_up_bytes_total": (_COPIES, "stats.catch_up_bytes"),
    "stratalog_replication_checkpoints_total": (_COPIES, "stats.checkpoints"),
    "stratalog_replication_lost_copies_total": (_COPIES, "stats.lost_copies"),
    "stratalog_replication_copies_due": ("tests/unit/node/test_queued_copies.py", "due.copies_due == 1"),
    "stratalog_replication_damaged_copies_total": (_DAMAGED, "stats.damaged_copies == 1"),
    "stratalog_replication_faulty_copies": (_IN_TROUBLE, "stats.faulty_copies == 1"),
    "stratalog_replication_refused_appends_total": (_IN_TROUBLE, "stats.refused_appends"),
    "stratalog_replication_lag_offsets": (_IN_TROUBLE, "lag_offsets"),
    "stratalog_replication_lag_bytes": (_IN_TROUBLE, "lag_bytes"),
    "stratalog_replication_filled_copies_total": ("tests/unit/node/test_recoveries.py", "stats.filled_copies"),
    "stratalog_replication_unreached_peers": (_PEERS, "stats.unreached_peers"),
    "stratalog_replication_stored_bytes_total": (
        "tests/unit/node/test_read_policy_disable.py",
        "stats.stored_bytes == ",
    ),
    "stratalog_replication_vain_rounds_total": (_PEERS, "stats.vain_rounds"),
    "stratalog_audit_lost_total": (_AUDIT_LOG, "stats.lost == 500"),
    "stratalog_audit_waiting": (_AUDIT_LOG, "stats.waiting > 0"),
    "stratalog_audit_is_failing": (_AUDIT_LOG, "stats.is_failing == 1"),
    "stratalog_kafka_handshakes": (_HANDSHAKES, "stats.handshakes == 50"),
    "stratalog_kafka_handshakes_failed_total": (_HANDSHAKES, "stats.handshakes_failed == 50"),
    "stratalog_kafka_replica_cold_reads_total": (_REPLICA_FETCHES, "stats.replica_cold_reads == 1"),
    "stratalog_kafka_replica_cold_bytes_total": (_REPLICA_FETCHES, "stats.replica_cold_bytes"),
    "stratalog_kafka_sealed_reads_total": (_SEALED_READS, "stats.sealed_reads == 1"),
    "stratalog_kafka_sent_away_total": (_READ_REPLICAS, "stats.sent_away"),
    "stratalog_kafka_sent_back_total": (_READ_REPLICAS, "stats.sent_back"),
    "stratalog_quota_late_produce_total": (_QUOTAS, "late_produce, stats(rig).wait_ms) == (1, 1, wait_ms)"),
    "stratalog_quota_late_fetches_total": (_QUOTAS, "(stats(rig).late_fetches, stats(rig).muted) == (1, 1)"),
    "stratalog_quota_late_requests_total": (_QUOTAS, "stats(rig).late_requests == 1"),
    "stratalog_quota_late_mutations_total": (_QUOTAS, "stats(rig).late_mutations == 1"),
    "stratalog_quota_wait_seconds_total": (_QUOTAS, "stats(rig).wait_ms) == (1, 1, wait_ms)"),
    "stratalog_quota_muted": (_QUOTAS, "stats(rig).muted == 1"),
    "stratalog_peer_read_ranges_total": (_PEER_READS, "stats.ranges"),
    "stratalog_peer_read_bytes_total": (_PEER_READS, "stats.bytes == "),
    "stratalog_peer_read_joined_total": (_PEER_READS, "stats.joined"),
    "stratalog_peer_read_failures_total": (_PEER_READS, "stats.failures == 1"),
    "stratalog_peer_read_refusals_total": (_PEER_READS, "stats.refusals"),
    "stratalog_peer_read_tables_total": (_TABLES, "stats.tables >= 1"),
    "stratalog_peer_read_in_flight": (_PEER_READS, "stats.in_flight"),
    "stratalog_mounts_held": (_MOUNTS, "stats.held == 1"),
    "stratalog_mounts_waiting": (_MOUNTS, "stats.waiting == 1"),
    "stratalog_mounts_taken_total": (_MOUNTS, "stats.taken == 1"),
    "stratalog_mounts_given_up_total": (_MOUNTS, "stats.given_up == 1"),
    "stratalog_tier_mounted_read_bytes_total": (_MOUNT_UPLOADS, "mounted_read_bytes < seal.size_bytes"),
    "stratalog_tier_direct_unstored_bytes": (
        "tests/unit/node/test_direct_topics.py",
        "stats.direct_unstored_bytes >= 1 << 10",
    ),
    "stratalog_tier_mounted_unsent_bytes": (_MOUNT_UPLOADS, "mounted_unsent_bytes == status.unsent_bytes"),
    "stratalog_cold_read_corrupt_ranges_total": (_COLD_READER, "corrupt_ranges"),
    "stratalog_cold_read_archived_ranges_total": (_COLD_READER, "archived_ranges"),
    "stratalog_cold_read_late_blocks_total": (_COLD_READER, "late_blocks"),
    "stratalog_cold_read_late_bytes_total": (_COLD_READER, "late_bytes"),
    "stratalog_cold_read_refetched_bytes_total": (_COLD_MEMORY, "refetched_bytes"),
    "stratalog_cold_read_evicted_passed_blocks_total": (_COLD_MEMORY, "evicted_passed_blocks"),
    "stratalog_cold_read_evicted_far_blocks_total": (_COLD_MEMORY, "evicted_far_blocks"),
    "stratalog_cold_read_throttled_total": (_COLD_MEMORY, "stats.throttled > 0"),
    "stratalog_cold_read_throttle_seconds_total": (_COLD_MEMORY, "stats.throttle_ms > 0"),
    "stratalog_cold_read_evicted_late_blocks_total": (_COLD_MEMORY, "evicted_late_blocks"),
    "stratalog_cold_read_hits_total": (_COLD_READER, "hits"),
    "stratalog_cold_read_joined_total": (_COLD_READER, "joined"),
    "stratalog_cold_read_reloads_total": (_COLD_READER, "reloads"),
    "stratalog_cold_read_evicted_unread_blocks_total": (_COLD_MEMORY, "evicted_unread_blocks > 0"),
    "stratalog_cold_read_waits_total": (_COLD_MEMORY, "waits > 0"),
    "stratalog_cold_read_fetch_failures_total": ("tests/stores/test_cold_reader_behind_faults.py", "fetch_failures"),
    "stratalog_flush_failures_total": ("tests/unit/shards/flush/test_flush_groups.py", "stats.failures == 1"),
    "stratalog_groups_append_failures_total": (_RARE, "append_failures"),
    "stratalog_kafka_control_errors_total": (_RARE, "control_errors"),
    "stratalog_meta_copies_differing_total": ("tests/unit/meta/test_recovery_news.py", "stats.copies_differing == 1"),
    "stratalog_meta_ranges_given_up_total": ("tests/unit/meta/test_recovery_news.py", "stats.ranges_given_up"),
    "stratalog_meta_recoveries_total": ("tests/unit/meta/test_recovery_news.py", "stats.recoveries"),
    "stratalog_meta_snapshot_failures_total": (_BACKUPS, "backup_stats.failures > 0"),
    "stratalog_meta_snapshot_is_failing": (_BACKUPS, "backup_stats.is_failing == 1"),
    "stratalog_meta_snapshot_is_older": (_BACKUPS, "backup_stats.is_older == 1"),
    "stratalog_meta_store_refusals_total": ("tests/unit/meta/test_meta_writer.py", "stats.store_refusals == 1"),
    "stratalog_meta_watches_lagged_total": ("tests/unit/meta/test_meta_watch.py", 'match="snapshot"'),
    "stratalog_tier_age_behind_seconds": ("tests/unit/node/test_clock_steps.py", "age_behind_ms"),
    "stratalog_tier_held_segments": (_RARE, "held_segments"),
    "stratalog_tier_bundles_unexplained": (_CLAIMS, "bundles_unexplained == 1"),
    "stratalog_tier_forks_found_total": (_CLAIMS, "stats.forks_found) == (1, 1)"),
    "stratalog_tier_is_forked": (_CLAIMS, "later.stats.is_forked"),
    "stratalog_tier_segments_to_publish": (_TIER_FAULTS, "segments_to_publish == 1"),
    "stratalog_log_lines_lost_total": ("tests/crash/test_log_without_room.py", 'log_lines_lost_total"] >= 1'),
    "stratalog_log_missing_copies_total": ("tests/unit/shards/test_missing_files.py", "missing_copies"),
    "stratalog_log_away_copies_total": ("tests/unit/shards/moves/test_moved_copies.py", "stats.away_copies,"),
    "stratalog_tier_commits_lost_total": (_TIER_FAULTS, "commits_lost"),
    "stratalog_groups_foreign_batches_total": (_GROUP_LOG, "foreign_batches"),
    "stratalog_groups_incomplete_loads_total": (_GROUP_LOG, "incomplete_loads"),
    "stratalog_groups_snapshots_total": (_GROUP_LOG, "snapshots"),
    "stratalog_groups_proofs_total": ("tests/unit/groups/test_groups_over_nodes.py", "stats.proofs == 1"),
    "stratalog_log_seal_failures_total": ("tests/unit/shards/test_shard_rolls.py", "seal_failures"),
    "stratalog_log_given_up_offsets_total": ("tests/unit/shards/restart/test_healing.py", "given_up_offsets == 2"),
    "stratalog_log_healed_bytes_total": ("tests/unit/shards/restart/test_healing.py", "healed_bytes == 69"),
    "stratalog_log_healed_shards_total": ("tests/unit/shards/restart/test_healing.py", "stats.healed_shards == 1"),
    "stratalog_log_producers_dropped_total": (
        "tests/unit/shards/log/test_producer_memory.py",
        "producers_dropped == 20",
    ),
    "stratalog_log_damaged_copies_total": ("tests/unit/shards/copies/test_damaged_copies.py", "damaged_copies"),
    "stratalog_http_closed_for_fault_total": (_HTTP_PORT, "stats.closed_for_fault == 1"),
    "stratalog_http_connections": (_HTTP_PLACES, "stats.connections == 1"),
    "stratalog_http_foreign_total": (_HTTP_PORT, "stats.foreign == 5"),
    "stratalog_http_unauthorized_total": (_HTTP_PORT, "stats.unauthorized == 7"),
    "stratalog_http_forbidden_total": ("tests/unit/telemetry/test_http_roles.py", "stats.forbidden == 2"),
    "stratalog_http_turned_away_total": (_HTTP_PLACES, 'stats.turned_away["made_room"] == 100'),
    "stratalog_http_handshakes": (_HANDSHAKES, "stats.handshakes == 50"),
    "stratalog_http_handshakes_failed_total": (_HANDSHAKES, "stats.handshakes_failed == 50"),
    "stratalog_index_loads_total": ("tests/unit/shards/test_index_cache.py", "stats.loads"),
    "stratalog_index_drops_total": ("tests/unit/shards/test_index_cache.py", "stats.drops"),
    "stratalog_log_stopped_shards": ("tests/unit/shards/test_stopped_shards.py", "stopped_shards"),
    "stratalog_loop_blocks_total": ("tests/unit/telemetry/test_loop_watchdog.py", "blocks"),
    "stratalog_loop_blocked_seconds": ("tests/unit/telemetry/test_loop_watchdog.py", "blocked.count"),
    "stratalog_metric_read_failures_total": (_REGISTRY, "read_failures"),
    "stratalog_build_info": (_REGISTRY, "stratalog_build_info"),
    "process_max_fds": (_REGISTRY, "process_max_fds"),
    "stratalog_find_searches_total": _FIND,
    "stratalog_find_records_total": _FIND,
    "stratalog_find_range_reads_total": _FIND,
    "stratalog_find_offsets_read_total": _FIND,
    "stratalog_groups_unknown_ends": (_MEASURES, 'named("groups_unknown_ends")] == 1'),
    "stratalog_metric_left_out": (_MEASURES, 'named("metric_left_out", "topics")] == 2'),
    "stratalog_shard_in_sync_replicas": (_MEASURES, "shard_in_sync_replicas"),
    "stratalog_shard_replicas": (_MEASURES, "shard_replicas"),
    "stratalog_topic_leaderless_shards": (_MEASURES, 'named("topic_leaderless_shards", "flights")] == 1'),
    "stratalog_topic_stopped_shards": (_MEASURES, 'named("topic_stopped_shards", "topic-11")] == 1'),
    "stratalog_topic_under_replicated_shards": (_MEASURES, 'named("topic_under_replicated_shards", "flights")] == 1'),
    "stratalog_topic_under_min_isr_shards": (_MEASURES, 'named("topic_under_min_isr_shards", "flights")] == 1'),
    "stratalog_tier_commits_repeated_total": (_TIER_FAULTS, "commits_repeated"),
    "stratalog_tier_chunks_packed_total": (_PACKING, "stats.chunks_packed >= 3"),
    "stratalog_tier_packed_bytes_total": (_PACKING, "stats.packed_bytes < "),
    "stratalog_tier_unpacked_bytes_total": (_PACKING, "stats.unpacked_bytes / 2"),
    "stratalog_tier_chunks_left_unpacked_total": (_PACKING, "stats.chunks_left_unpacked == 1"),
    "stratalog_tier_key_indexes_built_total": ("tests/unit/tier/store/test_key_indexes.py", "key_indexes_built == 1"),
    "stratalog_tier_locks_lost_total": (_TIER_FAULTS, "locks_lost"),
    "stratalog_tier_objects_swept_total": ("tests/unit/tier/test_tier_janitor.py", "is_swept"),
    "stratalog_tier_objects_unexplained": ("tests/unit/tier/test_tier_janitor.py", "objects_unexplained"),
    "stratalog_tier_bundles_rewritten_total": ("tests/unit/tier/test_tier_janitor.py", "bundles_rewritten"),
    "stratalog_tier_parts_moved_total": ("tests/unit/tier/test_tier_janitor.py", "parts_moved"),
    "stratalog_tier_segments_held_total": (_TIER_FAULTS, "segments_held"),
    "stratalog_tier_tasks_crashed_total": (_TIER_FAULTS, "tasks_crashed"),
}


class Scene:
    """One node behind a fault proxy to its object store, and what its clients do."""

    def __init__(self, node: NodeProcess, proxy: FaultProxy, history: MetricHistory) -> None:
        self.node = node
        self.proxy = proxy
        self.history = history

    def create(self, name: str, shards: int = 1, **settings: str) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap})
        admin.create_topics([NewTopic(name, shards, config=config)])[name].result(10)

    def delete(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap})
        admin.delete_topics([name])[name].result(10)

    def produce(self, topic: str, count: int, size: int = 200, shards: int = 1, **options: Any) -> list[str]:
        """Returns the errors of the records that were refused."""
        refused: list[str] = []
        config = {"bootstrap.servers": self.node.bootstrap, "linger.ms": 0, "batch.num.messages": 10}
        producer = Producer(config | {"message.timeout.ms": 2000, "message.max.bytes": 10_000_000} | options)
        for number in range(count):
            producer.produce(
                topic,
                value=b"v" * size,
                partition=number % shards,
                on_delivery=lambda error, _: refused.append(str(error)) if error else None,
            )
            producer.poll(0)
        producer.flush(20)
        return refused

    def consume(self, topic: str, count: int, group: str | None = None, from_offset: int = 0) -> int:
        config = {
            "bootstrap.servers": self.node.bootstrap,
            "group.id": group or "none",
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(config | {"session.timeout.ms": 6000, "enable.auto.commit": False})
        if group is not None:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, 0, from_offset)])
        got = 0
        while got < count:
            message = consumer.poll(5)
            if message is None:
                break
            got += message.error() is None
        if group is not None and got:
            consumer.commit(asynchronous=False)
            eventually_sync(lambda: self.metric("stratalog_groups_offsets") > 0, 10)
            eventually_sync(lambda: self.metric("stratalog_group_members") > 0, 10)
        consumer.close()
        return got

    def segments(self, topic: str) -> list[dict[str, Any]]:
        return list(json.loads(self.node.get(f"/v1/segments?topic={topic}")))

    def seal(self, topic: str) -> None:
        self.send("POST", "/v1/seal", {"topic": topic})

    def send(self, method: str, path: str, body: object) -> None:
        url = f"http://{self.node.admin}{path}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
        urllib.request.urlopen(request, timeout=30).read()

    def metric(self, name: str) -> float:
        """The sum over a family's series; the history has it, too, so that what was waited for was seen."""
        return self.history.sample()[name]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.mark.fault("metric-moves-gauge-fails")
def test_every_metric_moves(tmp_path: Path, server: S3Server) -> None:
    history = MetricHistory()
    with proxy_in_thread(server.port) as proxy:
        node = NodeProcess(tmp_path / "data", server.through(proxy.port).url("p"), SETTINGS)
        with node, history.watch(node):
            history.sample()
            scene = Scene(node, proxy, history)
            hot_paths(scene)
            forgotten_offsets(scene)
            cold_paths(scene)
            refusals(scene)
            store_faults(scene)
            torn_tail(scene, tmp_path)
            lost_copy(scene)
            no_room(scene)
            failing_disk(scene, node.pid)

    unmoved = history.families.keys() - history.moved() - ELSEWHERE.keys()
    assert not unmoved, "no test moves these:\n" + "\n".join(sorted(unmoved))


def hot_paths(scene: Scene) -> None:
    scene.create("hot", shards=2)
    scene.create("durable", shards=8, flush_policy="fsync")
    scene.produce("hot", 100, shards=2)
    scene.produce("durable", 200, shards=8)
    assert scene.consume("hot", 100, group="readers") == 100
    scene.produce("hot", 360, size=100_000, shards=1, **{"queue.buffering.max.kbytes": 100_000})
    eventually_sync(lambda: scene.metric("stratalog_flush_checkpoints_total") > 0, 20)


def forgotten_offsets(scene: Scene) -> None:
    scene.create("forgotten")
    scene.produce("forgotten", 10)
    assert scene.consume("forgotten", 10, group="forgetful") == 10
    scene.delete("forgotten")
    eventually_sync(lambda: scene.metric("stratalog_groups_expired_offsets_total") > 0, 20)


def cold_paths(scene: Scene) -> None:
    scene.create("cold", local_retention_bytes="0", segment_bytes="200000")
    scene.produce("cold", 3000, size=1000, **{"batch.num.messages": 50})
    scene.seal("cold")
    eventually_sync(lambda: scene.segments("cold")[0]["tier"] == "cold", 30)
    scene.proxy.add(Rule(Latency(0.02)))

    def is_read_while_seen() -> bool:
        scene.consume("cold", 2000)
        return "stratalog_cold_read_in_flight_bytes" in scene.history.moved()

    eventually_sync(is_read_while_seen, 30)
    scene.consume("cold", 3)
    scene.proxy.clear()
    scene.create("gone", retention_ms="1", segment_bytes="2000")
    scene.produce("gone", 100)
    scene.seal("gone")
    eventually_sync(lambda: scene.metric("stratalog_tier_log_starts_moved_total") > 0, 30)
    eventually_sync(lambda: scene.metric("stratalog_shard_start_offset") > 0, 30)
    scene.delete("gone")
    eventually_sync(lambda: scene.metric("stratalog_tier_segments_purged_total") > 0, 30)


def refusals(scene: Scene) -> None:
    scene.create("narrow", max_message_bytes="500")
    with pytest.raises(KafkaException):
        scene.create("narrow")
    assert scene.produce("narrow", 1, size=5000)
    with socket.create_connection(scene.node.host_and_port) as broken:
        broken.sendall(struct.pack(">i", -5))
        assert broken.recv(1) == b""
    crowd = [socket.create_connection(scene.node.host_and_port) for _ in range(20)]
    eventually_sync(lambda: scene.metric("stratalog_kafka_turned_away_total") > 0, 10)
    for one in crowd:
        one.close()


def store_faults(scene: Scene) -> None:
    proxy = scene.proxy

    def until(metric: str) -> None:
        """Keep writing, so that there is something to upload, until a metric has moved."""

        def has_moved() -> bool:
            scene.produce("hot", 20, shards=2)
            return scene.metric(metric) > 0

        eventually_sync(has_moved, 30)

    proxy.add(Rule(Latency(0.1), methods={"PUT"}))
    proxy.add(Rule(LostAnswer(), methods={"PUT"}, times=1))
    until("stratalog_tier_attempts_doubtful_total")
    proxy.clear()
    proxy.add(Rule(ServerError(503)))
    until("stratalog_tier_attempts_refused_total")
    until("stratalog_tier_store_away_seconds")
    scene.consume("cold", 1, from_offset=1000)
    proxy.clear()
    scene.produce("hot", 20, shards=2)
    eventually_sync(lambda: scene.metric("stratalog_tier_store_away_seconds") == 0, 60)


def torn_tail(scene: Scene, tmp_path: Path) -> None:
    node = scene.node
    segment = scene.segments("hot")[-1]
    place, end_offset = Path(segment["places"][0]), segment["end_offset"]
    node.kill()
    with place.open("ab") as file:
        file.write(end_offset.to_bytes(8, "big"))  # the front of the next batch: its write was cut off
    node.start()
    assert scene.metric("stratalog_log_torn_tail_bytes_total") == 8


def lost_copy(scene: Scene) -> None:
    """Its records are in the bucket, which the topic's policy keeps readers out of."""
    scene.create("barred", segment_bytes="2000", remote_read_policy="Disable")
    scene.produce("barred", 100)
    scene.seal("barred")
    eventually_sync(lambda: scene.segments("barred")[0]["tier"] == "both", 30)
    (place,) = [Path(one) for one in scene.segments("barred")[0]["places"] if one.endswith(".seg")]
    scene.node.stop()
    place.unlink()
    scene.node.start()
    consumer = Consumer({"bootstrap.servers": scene.node.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition("barred", 0, 0)])
    message = consumer.poll(20)
    assert message is not None and message.error() is not None
    eventually_sync(lambda: scene.metric("stratalog_log_barred_reads_total") > 0, 20)
    consumer.close()


def no_room(scene: Scene) -> None:
    node = scene.node
    node.stop()
    node.settings["disk.reserve.bytes"] = 1 << 60
    node.start()
    assert scene.produce("hot", 1)
    for metric in ("disk_is_refusing_writes", "disk_refusals_total", "replication_is_without_room"):
        eventually_sync(lambda name=metric: scene.metric(f"stratalog_{name}") > 0, 20)
    node.stop()
    del node.settings["disk.reserve.bytes"]
    node.start()


def failing_disk(scene: Scene, pid: int) -> None:
    """The kernel refuses every write: the node's disk fails, its memory does not."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    assert scene.produce("hot", 1)
    assert scene.produce("durable", 1, **{"enable.idempotence": True})
    for metric in ("log_write_failures_total", "meta_store_failures_total"):
        eventually_sync(lambda name=metric: scene.metric(f"stratalog_{name}") > 0, 20)
    scene.node.kill()
    scene.node.start()


def test_the_table_names_tests_that_speak_of_the_field(repository: Path) -> None:
    for metric, (path, field) in ELSEWHERE.items():
        assert field in (repository / path).read_text(encoding="utf-8"), f"{path} does not move {metric}"
