"""Settings that are addresses, and what is wrong with one that nobody can use."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from stratalog.model.addresses import is_name, parse_address
from stratalog.model.listeners import check_advertised, check_further, parse_listeners


def _host_and_port(value: str) -> str:
    if value:
        parse_address(value)
    return value


def _further(value: str) -> str:
    check_further(parse_listeners(value))
    return value


def _advertised(value: str) -> str:
    check_advertised(parse_listeners(value))
    return value


def _names(value: str) -> str:
    wrong = [entry.strip() for entry in value.split(",") if not is_name(entry.strip().removeprefix("."))]
    if value.strip() and wrong:
        raise ValueError(
            f"expected names without port, protocol or path, such as a.example or .example, not {wrong[0]!r}"
        )
    return value


Address: TypeAlias = Annotated[str, AfterValidator(_host_and_port)]
"""HOST:PORT to listen at; empty: none."""
FurtherListeners: TypeAlias = Annotated[str, AfterValidator(_further)]
"""NAME://HOST:PORT to listen at, with commas; empty: none."""
AdvertisedListeners: TypeAlias = Annotated[str, AfterValidator(_advertised)]
"""NAME://HOST:PORT, or HOST:PORT for the internal listener, that others connect to; empty: none."""
HostNames: TypeAlias = Annotated[str, AfterValidator(_names)]
"""Names, separated by commas; one that begins with a dot stands for all below it."""
