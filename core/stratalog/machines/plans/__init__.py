"""Plans over the whole cluster's metadata: retirements, leases, and the summary that people see."""

__all__ = (
    "cluster_lists",
    "cluster_outline",
    "cluster_overview",
    "heartbeat_history",
    "node_leases",
    "retirement",
    "retirement_input",
    "shard_troubles",
    "verification_turns",
)
