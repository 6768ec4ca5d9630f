"""How a command finds and asks a cluster, and prints answers: contexts, addresses, tokens, certificates, Kafka clients,
tables, JSON."""

__all__ = (
    "bucket_asked",
    "client_settings",
    "contexts",
    "group_reads",
    "group_reset",
    "json_answers",
    "kafka_clients",
    "listener",
    "local_bytes",
    "meta_question",
    "missing_right",
    "offered",
    "output",
    "record_lines",
    "several_nodes",
    "shown_certificate",
    "shown_token",
    "target_address",
)
