"""The meta service: topics, shards, segments, nodes and write locks, in one place, durable."""

from stratalog_meta.service import MetaService, open_service

__all__ = ["MetaService", "open_service"]
