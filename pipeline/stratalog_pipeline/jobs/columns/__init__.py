"""Turns records into columns: JSON, Avro and Protobuf values, Arrow types, and the layout of an archived table."""

__all__ = (
    "avro_records",
    "json_inference",
    "json_records",
    "protobuf_types",
    "record_columns",
    "record_kinds",
    "table_layout",
    "table_types",
    "topic_folder",
)
