"""Plans over the whole cluster's metadata: retirements, leases, and the summary that people see."""

__all__ = (
    "cluster_lists",
    "cluster_outline",
    "cluster_overview",
    "heartbeat_history",
    "leaving_turns",
    "node_leases",
    "retirement",
    "retirement_looks",
    "shard_troubles",
)
