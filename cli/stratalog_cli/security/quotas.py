"""`stratalog quotas …`: what users, client ids and addresses may use of a node in a second: list, set, remove.

Entities and keys are those of `kafka-configs.sh`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Final

import typer

from stratalog.machines.quotas.alterations import NO_LIMITS, address_of, altered, check_entity, check_key, limit_of
from stratalog.model.counting import counted, did_you_mean
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.model.quotas import DEFAULT, EntityQuotas, QuotaAlteration, QuotaChange, QuotaEntity, QuotaKey
from stratalog.settings.units import size_bytes
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.kafka_clients import BootstrapOption
from stratalog_cli.connect.meta_question import MetaOption
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.security.quotas_place import QuotasPlace, quotas_place
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.option_groups import with_groups
from stratalog_cli.terminal.say import say

_KEYS: Final = tuple(key.value for key in QuotaKey)
_BYTES: Final = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)

UserOption = Annotated[str | None, typer.Option("--user", metavar="NAME", help="A user, without `User:` before it.")]
UsersOption = Annotated[bool, typer.Option("--user-defaults", help="All users without a quota of their own.")]
ClientOption = Annotated[str | None, typer.Option("--client", metavar="ID", help="A client id.")]
ClientsOption = Annotated[bool, typer.Option("--client-defaults", help="All client ids without a quota of their own.")]
AddressOption = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="An address of clients.")]
AddressesOption = Annotated[bool, typer.Option("--ip-defaults", help="All addresses without a quota of their own.")]


@dataclass(frozen=True, slots=True)
class EntityOptions:
    """Whose quota."""

    user: UserOption = None
    user_defaults: UsersOption = False
    client: ClientOption = None
    client_defaults: ClientsOption = False
    ip: AddressOption = None
    ip_defaults: AddressesOption = False


def _assignments() -> list[str]:
    """For completion."""
    return [f"{key}=" for key in _KEYS]


def _keys() -> list[str]:
    return list(_KEYS)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="List, set and remove quotas of users, client ids and addresses. Keys as of kafka-configs.sh.",
    )
    group.command("list")(with_groups(list_quotas))
    group.command("set")(with_groups(set_limits))
    group.command("remove")(with_groups(remove))
    app.add_typer(group, name="quotas")


def list_quotas(
    whose: EntityOptions,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List quotas: all, or those of entities that name this user, client id or address."""
    wanted = _entity(whose)
    found = [one for one in quotas_place(bootstrap, meta, is_write=False).quotas() if _is_found(wanted, one.entity)]
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in found])
    elif found:
        _print(found)
    else:
        say("no such quotas; set one: stratalog quotas set --user NAME producer_byte_rate=1MiB")


def set_limits(
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=LIMIT",
            help="producer_byte_rate=1MiB, consumer_byte_rate, request_percentage, controller_mutation_rate; of "
            "addresses connection_creation_rate. Other limits of the entity stay.",
            autocompletion=_assignments,
        ),
    ],
    whose: EntityOptions,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Limit what an entity may use of each node in a second: --user alice consumer_byte_rate=10MiB."""
    entity = _entity(whose)
    _check_named(entity)
    changes = tuple(_change(entity, text) for text in limits)
    altered(NO_LIMITS, QuotaAlteration(entity, changes))  # refuses a key that is named twice
    place = quotas_place(bootstrap, meta, is_write=True)
    place.alter(QuotaAlteration(entity, changes))
    _show_entity(place, entity, output)
    say("each node counts for itself", to_stderr=True)


def remove(
    *,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Limits to remove. Default: all of the entity.", autocompletion=_keys),
    ] = None,
    whose: EntityOptions,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove limits of an entity. Defaults, and less exact entities, count for it from then on."""
    entity = _entity(whose)
    _check_named(entity)
    wanted = [_key(text) for text in keys or ()]
    place = quotas_place(bootstrap, meta, is_write=True)
    known = next((one for one in place.quotas() if one.entity == entity), None)
    there = [] if known is None else [key for key in QuotaKey if known.limits.of(key) is not None]
    gone = [key for key in there if not wanted or key in wanted]
    if not gone:
        which = f" with {' or '.join(key.value for key in wanted)}" if wanted else ""
        raise NotFound(
            f"{_words(entity)} has no quota{which}, and nothing was removed: `stratalog quotas list` shows all"
        )
    if not yes:
        require_confirmation(f"remove {', '.join(key.value for key in gone)} of {_words(entity)}")
    place.alter(QuotaAlteration(entity, tuple(QuotaChange(key, None) for key in gone)))
    if output is OutputFormat.JSON:
        print_json([{"entity": _entity_json(entity), "removed": [key.value for key in gone]}])
    else:
        say(f"removed {counted(len(gone), 'limit')} of {_words(entity)}: {', '.join(key.value for key in gone)}")


# Entities and limits ------------------------------------------------------------------------------------------------
def _entity(whose: EntityOptions) -> QuotaEntity:
    """What is not named is None. Raises: InvalidRequest."""
    address = None if whose.ip is None else address_of(whose.ip)
    if whose.ip is not None and address is None:
        raise InvalidRequest(f"--ip {whose.ip[:80]!r}: expected an address: names of hosts are not looked up")
    if whose.user is not None and whose.user.startswith("User:"):
        raise InvalidRequest(
            f"--user {whose.user[:80]!r}: leave out `User:`, which stands before a name in rules alone"
        )
    return QuotaEntity(
        _part("user", whose.user, whose.user_defaults),
        _part("client", whose.client, whose.client_defaults),
        _part("ip", address, whose.ip_defaults),
    )


def _part(option: str, name: str | None, is_default: bool) -> str | None:
    if name == "" or (name is not None and is_default):
        raise InvalidRequest(f"--{option}: give a name, or --{option}-defaults")
    return DEFAULT if is_default else name


def _check_named(entity: QuotaEntity) -> None:
    """Kafka's texts name no option. Raises: InvalidRequest."""
    if not _parts(entity):
        raise InvalidRequest(
            "whose quota? Name a user (--user NAME), a client id (--client ID) or both, or an address (--ip ADDRESS); "
            "--user-defaults, --client-defaults and --ip-defaults are all others"
        )
    check_entity(entity)


def _check_key(entity: QuotaEntity, key: QuotaKey) -> None:
    """Raises: InvalidRequest."""
    try:
        check_key(entity, key)
    except InvalidRequest:
        if entity.ip is None:
            why = f"{key.value} is a limit of addresses: name one by --ip ADDRESS, or --ip-defaults"
        else:
            why = f"{key.value} is not a limit of addresses: name a user (--user NAME) or a client id (--client ID)"
        raise InvalidRequest(why) from None


def _is_found(wanted: QuotaEntity, entity: QuotaEntity) -> bool:
    pairs = ((wanted.user, entity.user), (wanted.client_id, entity.client_id), (wanted.ip, entity.ip))
    return all(asked is None or asked == own for asked, own in pairs)


def _key(text: str) -> QuotaKey:
    try:
        return QuotaKey(text.replace(".", "_"))
    except ValueError:
        raise InvalidRequest(
            f"{text[:80]!r} is not a quota{did_you_mean(text, _KEYS)}: expected one of {', '.join(_KEYS)}"
        ) from None


def _change(entity: QuotaEntity, text: str) -> QuotaChange:
    name, equals, value = text.partition("=")
    key = _key(name)
    if not equals:
        raise InvalidRequest(
            f"{text[:80]!r}: expected KEY=LIMIT, such as {key.value}={'1MiB' if key in _BYTES else 10}"
        )
    _check_key(entity, key)
    size = size_bytes(value) if key in _BYTES else None
    try:
        limit = float(value) if size is None else float(size)
    except ValueError:
        limit = float("nan")
    if not isfinite(limit):
        what = "bytes in a second, such as 1048576 or 1MiB" if key in _BYTES else "a number"
        raise InvalidRequest(f"{key.value}={value[:40]!r}: expected {what}")
    return QuotaChange(key, limit_of(entity, key, limit))


# Showing ------------------------------------------------------------------------------------------------------------
def _parts(entity: QuotaEntity) -> Iterable[tuple[str, str]]:
    """Kafka's types that it names, with their names."""
    named = (("user", entity.user), ("client-id", entity.client_id), ("ip", entity.ip))
    return [(kind, name) for kind, name in named if name is not None]


def _words(entity: QuotaEntity) -> str:
    return ", ".join(
        f"default {kind}" if name == DEFAULT else f"{kind} {printable(name)}" for kind, name in _parts(entity)
    )


def _entity_json(entity: QuotaEntity) -> list[dict[str, str | None]]:
    """As in Kafka's protocol: a default has no name."""
    return [{"type": kind, "name": None if name == DEFAULT else name} for kind, name in _parts(entity)]


def _json(one: EntityQuotas) -> dict[str, Any]:
    limits = {key.value: limit for key in QuotaKey if (limit := one.limits.of(key)) is not None}
    return {"entity": _entity_json(one.entity), "limits": limits}


def _show_entity(place: QuotasPlace, entity: QuotaEntity, output: OutputFormat) -> None:
    found = [one for one in place.quotas() if one.entity == entity]
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in found])
    else:
        _print(found)


def _print(found: list[EntityQuotas]) -> None:
    rows = [
        (_words(one.entity), *("-" if (limit := one.limits.of(key)) is None else f"{limit:,.15g}" for key in QuotaKey))
        for one in found
    ]
    print_table(("entity", *(f"#{key}" for key in _KEYS)), rows, give_up=tuple(f"#{key}" for key in reversed(_KEYS)))
