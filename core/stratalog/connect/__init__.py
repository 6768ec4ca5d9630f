"""How a client of a cluster logs in: contexts, settings of Kafka clients, tokens, certificates; a connection to a
listener, and what a refusal means. For commands and for the pipeline."""

__all__ = (
    "brokers",
    "client_settings",
    "contexts",
    "http_login",
    "listener",
    "missing_right",
    "shown_certificate",
    "shown_token",
)
