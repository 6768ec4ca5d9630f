"""The address that a server advertises. An address such as 0.0.0.0 would lead each client to its own machine."""

from __future__ import annotations

from stratalog.model.addresses import is_anywhere, written
from stratalog.settings.process import ProcessSettings
from stratalog.telemetry.logs import logger

log = logger(__name__)


def announced_address(settings: ProcessSettings, listening: tuple[str, int]) -> str:
    """Returns HOST:PORT. Warns about an address that other machines cannot connect to, but accepts it, because it works
    on a single machine."""
    advertised = settings.advertised(listening)
    if is_anywhere(advertised[0]):
        log.warning(
            "clients and other servers get an address that means each machine itself, so from another machine they "
            "cannot connect: set advertised.listeners to an address that they can reach, or listen on it",
            address=written(*advertised),
        )
    return written(*advertised)
