"""Records of the group log: classic groups and consumer groups."""

__all__ = ("group_log",)
