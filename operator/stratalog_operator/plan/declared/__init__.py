"""Topics, mounts and users that people declare in a StorageCluster: what each needs next, and what its status says."""

__all__ = (
    "mount_status",
    "mounts",
    "topic_status",
    "topics",
    "user_status",
    "users",
)
