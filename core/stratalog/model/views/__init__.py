"""What people are shown of a cluster: outline, lists, node status, progress of retirements."""

__all__ = (
    "cluster_lists",
    "outline",
    "retirement_status",
    "rights_view",
    "status_page",
)
