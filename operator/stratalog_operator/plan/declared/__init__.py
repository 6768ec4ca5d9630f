"""Topics, mounts, users and jobs that people declare in a StorageCluster: what each needs next, and what its status
says."""

__all__ = (
    "archive_job_status",
    "archive_jobs",
    "mount_status",
    "mounts",
    "topic_status",
    "topics",
    "user_status",
    "users",
)
