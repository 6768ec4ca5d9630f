"""How a command finds and asks a cluster, and prints answers: addresses, Kafka clients, tables, JSON. How it logs in is
in `stratalog.connect`."""

__all__ = (
    "bucket_asked",
    "group_reads",
    "group_reset",
    "json_answers",
    "kafka_clients",
    "local_bytes",
    "meta_question",
    "offered",
    "output",
    "record_lines",
    "several_nodes",
    "target_address",
)
