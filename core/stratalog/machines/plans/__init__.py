"""Plans over the whole cluster's metadata: retirements, leases, and the summary that people see."""

__all__ = (
    "cluster_lists",
    "cluster_outline",
    "cluster_overview",
    "leaving_turns",
    "node_courses",
    "node_leases",
    "retirement",
    "retirement_looks",
    "shard_troubles",
)
