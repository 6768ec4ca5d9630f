"""The node's view of the metadata: topics, shards, segments and nodes, kept current by the meta service's watch."""

__all__ = (
    "catalog",
    "following",
    "lag",
    "lost_segments",
    "rights",
    "rules",
    "wait",
)
