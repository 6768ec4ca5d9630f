"""Members of groups and others that commit offsets, and what must hold for them."""

__all__ = ("group_clients", "group_truth")
