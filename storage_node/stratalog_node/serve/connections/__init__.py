"""Connections of Kafka clients: frames in, answers out in order, control requests, and what all requests share."""

__all__ = (
    "advertised",
    "answer",
    "byte_budget",
    "client_quotas",
    "client_rights",
    "connection",
    "connection_places",
    "consumer_codec",
    "context",
    "control",
    "control_state",
    "listeners",
    "logins",
    "off_loop",
    "registry",
    "send_share",
    "serving",
    "unknown_shards",
)
