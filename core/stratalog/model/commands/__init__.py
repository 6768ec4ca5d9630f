"""Commands to the meta service: each changes the shard table in one transaction, or is rejected."""

__all__ = (
    "mount_commands",
    "retirement_commands",
    "rights_commands",
    "table_commands",
)
