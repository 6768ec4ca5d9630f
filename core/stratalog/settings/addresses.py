"""Settings that are addresses, and what is wrong with one that nobody can use."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from stratalog.model.addresses import is_anywhere, is_name, parse_address


def _host_and_port(value: str) -> str:
    if value:
        parse_address(value)
    return value


def _can_be_connected_to(value: str) -> str:
    if value and is_anywhere(parse_address(value)[0]):
        raise ValueError("clients cannot connect to an address that means all of them; name one they reach")
    return value


def _names(value: str) -> str:
    wrong = [entry.strip() for entry in value.split(",") if not is_name(entry.strip().removeprefix("."))]
    if value.strip() and wrong:
        raise ValueError(f"expected names without port, protocol or path, a.example or .example, not {wrong[0]!r}")
    return value


Address: TypeAlias = Annotated[str, AfterValidator(_host_and_port)]
"""HOST:PORT to listen at; empty: none."""
ReachableAddress: TypeAlias = Annotated[Address, AfterValidator(_can_be_connected_to)]
"""HOST:PORT that others connect to; empty: none."""
HostNames: TypeAlias = Annotated[str, AfterValidator(_names)]
"""Names, separated by commas; one that begins with a dot stands for all below it."""
