"""One question to one broker, for what librdkafka has no call for: a request of Kafka's schema, and its answer.

Blocking, on a connection of its own (`stratalog.connect.listener`). Versions are named by the caller: they are ones
that every broker serves that this command speaks to.
"""

from __future__ import annotations

from typing import Any

from stratalog.connect.client_settings import PLAIN_TEXT, ClientSettings
from stratalog.connect.listener import ListenerConnection


def ask(
    host: str,
    port: int,
    api_key: int,
    version: int,
    *,
    settings: ClientSettings = PLAIN_TEXT,
    is_write: bool = False,
    **fields: object,
) -> Any:
    """Raises: Unavailable where nothing was asked, OutcomeUnknown for a write whose answer did not come; what the
    connection raises where the listener does not take the client."""
    with ListenerConnection(host, port, settings) as connection:
        return connection.ask(api_key, version, is_write=is_write, **fields)
