"""The address that others are told of a server: one that means every machine's own leads each of them to itself."""

from __future__ import annotations

from stratalog.model.addresses import is_anywhere, written
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger

log = logger(__name__)


def told_address(settings: ProcessSettings, listening: tuple[str, int]) -> str:
    """HOST:PORT. A warning says so where nobody on another machine can connect to it: alone on a machine that is all
    right, so it is not refused."""
    told = settings.advertised(listening)
    if is_anywhere(told[0]):
        log.warning(
            "clients and other servers get an address that means each machine itself, so from another machine they "
            "cannot connect: set advertised.listeners to an address that they can reach, or listen on it",
            address=written(*told),
        )
    return written(*told)
