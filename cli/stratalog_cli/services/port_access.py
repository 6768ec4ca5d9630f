"""What the HTTP ports of a process ask for, by its settings."""

from __future__ import annotations

from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.http_access import HttpAccess, http_access
from stratalog.telemetry.token_file import TokenFile, role_file


def port_access(
    settings: ProcessSettings, tokens: TokenFile | None, *, is_for_members: bool = False
) -> HttpAccess | None:
    """None where nothing is asked for. Raises: InvalidRequest for a file of named tokens that cannot be used."""
    return http_access(
        tokens,
        role_file(settings.auth_role_tokens_file, tokens),
        is_metrics_open=not settings.auth_metrics_enable,
        is_for_members=is_for_members,
        delay_ms=settings.connection_failed_authentication_delay_ms,
    )
