"""Whom a command asks and how: contexts, addresses, tokens, Kafka clients, output as table or JSON."""

__all__ = (
    "bucket_asked",
    "contexts",
    "group_reads",
    "group_reset",
    "json_answers",
    "kafka_clients",
    "kafka_question",
    "local_bytes",
    "offered",
    "output",
    "record_lines",
    "several_nodes",
    "shown_token",
    "target_address",
)
