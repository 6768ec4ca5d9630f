"""`stratalog cluster`: several nodes, their meta service and etcd as processes of one machine."""

__all__ = (
    "command",
    "directory",
    "etcd",
    "free_ports",
    "page",
)
