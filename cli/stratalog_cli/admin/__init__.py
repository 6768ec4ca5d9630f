"""`stratalog nodes`, `mounts`, `rebalance`, `recover`, `status`, `settings` and `context`."""

__all__ = (
    "context_command",
    "mounts",
    "nodes",
    "rebalance",
    "recover",
    "settings_command",
    "status",
)
