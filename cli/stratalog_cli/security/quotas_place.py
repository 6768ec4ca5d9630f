"""Where commands ask for quotas, and change them: a Kafka listener, or the meta service, as for rules and users
(`rights_place`)."""

from __future__ import annotations

from typing import Protocol

from stratalog.model.commands.rights_commands import AlterQuotas
from stratalog.model.errors import Unavailable
from stratalog.model.quotas import EntityQuotas, QuotaAlteration
from stratalog_cli.connect.meta_question import ask_meta
from stratalog_cli.security.quotas_over_kafka import QuotasOverKafka, in_order
from stratalog_cli.security.rights_place import is_over_meta, listener_connection


class QuotasPlace(Protocol):
    """Each call is one request. Raises: what the other side says."""

    def quotas(self) -> list[EntityQuotas]:
        """All of them, in the order of their names."""

    def alter(self, alteration: QuotaAlteration) -> None: ...


class _OverMeta:
    def __init__(self, meta: str | None, *, is_write: bool) -> None:
        self._meta = meta
        self._is_write = is_write

    def quotas(self) -> list[EntityQuotas]:
        found = ask_meta(self._meta, lambda client: client.rights()).quotas
        if found is None:
            raise Unavailable("the meta service is older than this command, and lists no quotas: ask by --bootstrap")
        return in_order(found)

    def alter(self, alteration: QuotaAlteration) -> None:
        command = AlterQuotas((alteration,))
        for error in ask_meta(self._meta, lambda client: client.perform(command), is_write=self._is_write):
            if error is not None:
                raise error


def quotas_place(bootstrap: str | None, meta: str | None, *, is_write: bool) -> QuotasPlace:
    """Says where a write goes. Raises: as `rights_place`."""
    if is_over_meta(bootstrap, meta):
        return _OverMeta(meta, is_write=is_write)
    return QuotasOverKafka(listener_connection(bootstrap, is_write=is_write))
