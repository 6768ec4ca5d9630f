"""Starts the long-running processes: a node, the meta service, the operator, a retired volume's reader."""

__all__ = (
    "meta_command",
    "meta_rebuild",
    "node_command",
    "operator_command",
    "start_command",
)
