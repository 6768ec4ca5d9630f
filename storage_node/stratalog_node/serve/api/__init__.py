"""The handlers of all control APIs, one module per API key.

A module `pNN_name.py` declares `API = Api(...)`; add its name here (APIs of consumer groups lie in `groups`, those of
rules and users in `rights`, those of quotas in `quotas`). Modules load when `control_apis` is first called, so that
importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

from stratalog_node.serve.connections.registry import Api

MODULES = (
    "p02_list_offsets",
    "p03_metadata",
    "groups.p08_offset_commit",
    "groups.p09_offset_fetch",
    "groups.p10_find_coordinator",
    "groups.p11_join_group",
    "groups.p12_heartbeat",
    "groups.p13_leave_group",
    "groups.p14_sync_group",
    "groups.p15_describe_groups",
    "groups.p16_list_groups",
    "p18_api_versions",
    "p19_create_topics",
    "p20_delete_topics",
    "p21_delete_records",
    "p22_init_producer_id",
    "p23_offset_for_leader_epoch",
    "rights.p29_describe_acls",
    "rights.p30_create_acls",
    "rights.p31_delete_acls",
    "p32_describe_configs",
    "p33_alter_configs",
    "p35_describe_log_dirs",
    "p37_create_partitions",
    "groups.p42_delete_groups",
    "p44_incremental_alter_configs",
    "groups.p47_offset_delete",
    "quotas.p48_describe_client_quotas",
    "quotas.p49_alter_client_quotas",
    "rights.p50_describe_user_scram_credentials",
    "rights.p51_alter_user_scram_credentials",
    "p60_describe_cluster",
    "groups.p68_consumer_group_heartbeat",
    "groups.p69_consumer_group_describe",
)


def control_apis() -> list[Api]:
    """Every control API this node serves, in the order of MODULES."""
    return [import_module(f"{__name__}.{name}").API for name in MODULES]
