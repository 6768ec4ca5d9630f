"""Which test files only the whole suite has: `make test` alone leaves them out, CI runs them (`make test SUITE=all`).

`make test` is meant to be waited for. So what needs minutes of CPU is here, where faster tests look at the same code:
every seed and every planted fault of the simulator, every crash point, Spark, most clusters of several processes, full
disks, walks through whole pages of the documentation. A new file stands here if it takes more than some 20 s.
"""

from __future__ import annotations

DIRECTORIES = ("tests/spark",)
FILES = frozenset(
    (
        "tests/clients/test_cold_clients.py",
        "tests/clients/test_compaction_of_a_node.py",
        "tests/clients/test_compiled_node.py",
        "tests/clients/test_consumer_protocol.py",
        "tests/clients/test_demo.py",
        "tests/clients/test_docs_commands.py",
        "tests/clients/test_every_metric_moves.py",
        "tests/clients/test_groups_rolled.py",
        "tests/clients/test_idempotent_producers.py",
        "tests/clients/test_java_client.py",
        "tests/clients/test_node_pages_in_a_browser.py",
        "tests/clients/test_status_page_in_a_browser.py",
        "tests/cluster/test_cluster_over_tls.py",
        "tests/cluster/test_connections_taken.py",
        "tests/cluster/test_consistent_cuts.py",
        "tests/cluster/test_cuts_over_nodes.py",
        "tests/cluster/test_failing_disks.py",
        "tests/cluster/test_groups_of_a_cluster.py",
        "tests/cluster/test_meta_failover.py",
        "tests/cluster/test_meta_process.py",
        "tests/cluster/test_monitoring.py",
        "tests/cluster/test_mounted_volume.py",
        "tests/cluster/test_mounted_volume_uploaded.py",
        "tests/cluster/test_nodes_of_a_cluster.py",
        "tests/cluster/test_one_bad_directory.py",
        "tests/cluster/test_parts_killed.py",
        "tests/cluster/test_pods.py",
        "tests/cluster/test_rebuilt_volume.py",
        "tests/cluster/test_second_listener.py",
        "tests/cluster/test_secure_cluster_runs.py",
        "tests/cluster/test_token_of_a_cluster.py",
        "tests/crash/test_interrupted_steps.py",
        "tests/crash/test_disk_full.py",
        "tests/crash/test_lost_files.py",
        "tests/crash/test_node_killed.py",
        "tests/crash/test_power_cut.py",
        "tests/crash/test_store_away.py",
        "tests/damage/test_damaged_structures.py",
        "tests/property/test_request_costs.py",
        "tests/property/test_shard_table.py",
        "tests/property/test_table_replication.py",
        "tests/stores/test_compaction.py",
        "tests/stores/test_etcd_access.py",
        "tests/stores/test_packed_compaction.py",
        "tests/unit/cli/test_completion.py",
        "tests/unit/cli/records/test_find_command.py",
        "tests/unit/deploy/test_monitoring_files.py",
        "tests/unit/node/test_mounts_after_a_rebuild.py",
        "tests/unit/node/test_rebuilt_clusters.py",
        "tests/unit/operator/test_definitions_removed_served.py",
        "tests/unit/operator/test_killed_at_every_write.py",
        "tests/unit/pipeline/archive/test_archive_delta.py",
        "tests/unit/pipeline/tables/test_archive_iceberg.py",
        "tests/unit/pipeline/columns/test_fifty_topics.py",
        "tests/unit/serve/connections/test_many_ready_connections.py",
        "tests/unit/shards/restart/test_healing.py",
        "tests/unit/sim/test_product_leaving.py",
        "tests/unit/sim/test_product_uploads.py",
        "tests/unit/sim/test_product_worlds.py",
        "tests/unit/sim/test_product_disks.py",
    )
)


def is_thorough(file: str) -> bool:
    """`file`: a test file's path from the repository's root."""
    return file in FILES or file.startswith(tuple(f"{directory}/" for directory in DIRECTORIES))
