"""`stratalog acls …`: rules (ACLs), with the options of `kafka-acls.sh`: list, add, remove."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

import typer

from stratalog.model.counting import counted
from stratalog.model.errors import Forbidden, NotFound, StratalogError
from stratalog.model.rights import (
    ANONYMOUS,
    ANYTHING,
    USER,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    parse_principal,
)
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.kafka_clients import BootstrapOption
from stratalog_cli.connect.meta_question import MetaOption
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.security.rights_place import RightsPlace, rights_place
from stratalog_cli.security.rule_options import RuleOptions, filters_of, listed_by, rule_words, rules_of
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.option_groups import with_groups
from stratalog_cli.terminal.say import say

_SHOWN: Final = 5
"""Rules that a question names."""

_Names = list[str] | None
TopicsOption = Annotated[_Names, typer.Option("--topic", metavar="NAME", help="Topic, or * for all; may be repeated.")]
GroupsOption = Annotated[_Names, typer.Option("--group", metavar="NAME", help="Group, or * for all; may be repeated.")]
ClusterOption = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
TransactionsOption = Annotated[
    _Names, typer.Option("--transactional-id", metavar="NAME", help="Transactional id; may be repeated.")
]
TokensOption = Annotated[
    _Names, typer.Option("--delegation-token", metavar="NAME", help="Delegation token; may be repeated.")
]
UsersOption = Annotated[
    _Names, typer.Option("--user-principal", metavar="NAME", help="User as a resource; may be repeated.")
]
PatternOption = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal: the name itself; prefixed: all names that begin with it.",
    ),
]
FilterPatternOption = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help="literal or prefixed: rules of this kind and name; any: of both kinds; match: all that apply to the name.",
    ),
]
AllowedOption = Annotated[
    _Names,
    typer.Option("--allow-principal", metavar="User:NAME", help="Who may; User:* is everyone. May be repeated."),
]
DeniedOption = Annotated[
    _Names,
    typer.Option("--deny-principal", metavar="User:NAME", help="Who may not, whatever allows it; may be repeated."),
]
AllowedHostsOption = Annotated[
    _Names,
    typer.Option("--allow-host", metavar="ADDRESS", help="From where those who may; default: from everywhere."),
]
DeniedHostsOption = Annotated[
    _Names,
    typer.Option("--deny-host", metavar="ADDRESS", help="From where those who may not; default: from everywhere."),
]
OperationsOption = Annotated[
    _Names,
    typer.Option("--operation", metavar="OPERATION", help="READ, WRITE, DESCRIBE, …; default: ALL. May be repeated."),
]
ProducerOption = Annotated[
    bool, typer.Option("--producer", help="WRITE, DESCRIBE and CREATE of the topics, for a producer.")
]
ConsumerOption = Annotated[
    bool, typer.Option("--consumer", help="READ and DESCRIBE of the topics, READ of the groups, for a consumer.")
]
IdempotentOption = Annotated[
    bool, typer.Option("--idempotent", help="With --producer: IDEMPOTENT_WRITE of the cluster, for old brokers.")
]


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """What rules are about."""

    topics: TopicsOption = None
    groups: GroupsOption = None
    is_cluster: ClusterOption = False
    transactional_ids: TransactionsOption = None
    delegation_tokens: TokensOption = None
    users: UsersOption = None


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """The principals of rules, their hosts, and the operations."""

    allowed: AllowedOption = None
    denied: DeniedOption = None
    allowed_hosts: AllowedHostsOption = None
    denied_hosts: DeniedHostsOption = None
    operations: OperationsOption = None
    is_producer: ProducerOption = False
    is_consumer: ConsumerOption = False
    is_idempotent: IdempotentOption = False


def _options(resources: ResourceOptions, pattern: str, entries: EntryOptions | None = None) -> RuleOptions:
    given = asdict(resources) | ({} if entries is None else asdict(entries))
    return RuleOptions(**{name: value for name, value in given.items() if value is not None}, pattern=pattern)


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="List, add and remove rules (ACLs): who may do what. Options as of kafka-acls.sh.",
    )
    group.command("list")(with_groups(list_rules))
    group.command("add")(with_groups(add))
    group.command("remove")(with_groups(remove))
    app.add_typer(group, name="acls")


def list_rules(
    resources: ResourceOptions,
    pattern: FilterPatternOption = "match",
    principals: Annotated[
        _Names, typer.Option("--principal", metavar="User:NAME", help="Only rules about these; may be repeated.")
    ] = None,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List rules: all, or those that apply to the named resources and principals."""
    filters = listed_by(_options(resources, pattern), principals or ())
    place = rights_place(bootstrap, meta, is_write=False)
    found = sorted({rule for wanted in filters for rule in place.rules(wanted)})
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in found])
    elif found:
        _print(found)
    else:
        say("no such rules; add one: stratalog acls add --allow-principal User:NAME --operation READ --topic NAME")


def add(
    resources: ResourceOptions,
    *,
    pattern: PatternOption = "literal",
    entries: EntryOptions,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Add rules: --allow-principal User:alice --consumer --topic orders --group billing. One that is there stays."""
    rules = rules_of(_options(resources, pattern, entries))
    place = rights_place(bootstrap, meta, is_write=True)
    outcomes = place.create(rules)
    kept = [rule for rule, error in zip(rules, outcomes, strict=True) if error is None]
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in kept])
    elif kept:
        _print(kept)
        say(f"{counted(len(kept), 'rule')} kept")
    for hint in _hints(place, kept):
        say(hint, to_stderr=True)
    _raise_first(rules, outcomes)


def remove(
    resources: ResourceOptions,
    *,
    pattern: FilterPatternOption = "literal",
    entries: EntryOptions,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove the rules that `add` with the same options made, or, without principals, all rules of the resources."""
    filters = filters_of(_options(resources, pattern, entries))
    place = rights_place(bootstrap, meta, is_write=True)
    if not yes:
        found = sorted({rule for wanted in filters for rule in place.rules(wanted)})
        if not found:
            raise NotFound("there are no such rules, and nothing was removed: `stratalog acls list` shows all")
        more = f" and {counted(len(found) - _SHOWN, 'more rule')}" if len(found) > _SHOWN else ""
        require_confirmation(f"remove {'; '.join(map(rule_words, found[:_SHOWN]))}{more}")
    removed = sorted(place.delete(filters))
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in removed])
    elif removed:
        _print(removed)
        say(f"{counted(len(removed), 'rule')} removed")
    if not removed:
        raise NotFound("there are no such rules, and nothing was removed: `stratalog acls list` shows all")


def _hints(place: RightsPlace, kept: Sequence[Rule]) -> list[str]:
    """About names that nothing has yet: perhaps misspelled. None where the user may not ask."""
    literal = [one.resource for one in kept if one.resource.pattern is PatternType.LITERAL]
    topics = sorted({one.name for one in literal if one.type is ResourceType.TOPIC and one.name != ANYTHING})
    principals = [parse_principal(one.principal) for one in kept if one.permission is Permission.ALLOW]
    users = sorted({one.name for one in principals if one.type == USER and one.name not in (ANYTHING, ANONYMOUS.name)})
    hints = []
    with contextlib.suppress(StratalogError):
        known = {one.user for one in place.users()}
        hints += [
            f"note: User:{printable(name)} has no password here (`stratalog users create`): right if it logs in "
            "by a certificate or a token"
            for name in users
            if name not in known
        ]
    with contextlib.suppress(StratalogError):
        missing = place.missing_topics(topics) if topics else []
        hints += [f"note: there is no topic {printable(name)} yet; the rule holds once there is" for name in missing]
    return hints


def _raise_first(rules: Sequence[Rule], outcomes: Sequence[StratalogError | None]) -> None:
    for rule, error in zip(rules, outcomes, strict=True):
        if isinstance(error, Forbidden):
            raise error  # it is about who asked, not about the rule
        if error is not None:
            raise type(error)(f"{rule_words(rule)}: {error}")


def _json(one: Rule) -> dict[str, Any]:
    return {
        "resource_type": one.resource.type.name,
        "name": one.resource.name,
        "pattern_type": one.resource.pattern.name,
        "principal": one.principal,
        "host": one.host,
        "operation": one.operation.name,
        "permission": one.permission.name,
    }


def _print(rules: Sequence[Rule]) -> None:
    rows = [
        (
            one.resource.type.name,
            one.resource.name,
            one.resource.pattern.name,
            one.principal,
            one.operation.name,
            one.permission.name,
            one.host,
        )
        for one in rules
    ]
    columns = ("resource", "name", "pattern", "principal", "operation", "permission", "host")
    print_table(columns, rows, give_up=("host", "pattern"))
