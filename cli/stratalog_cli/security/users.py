"""`stratalog users …`: SCRAM users, who log in to Kafka listeners by a password: list, create, delete."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from stratalog.model.counting import counted
from stratalog.model.errors import AlreadyExists, InvalidRequest, NotFound, Rejected, Unavailable
from stratalog.model.rights import USER, Principal, Rule, RuleFilter
from stratalog.model.scram import LEAST_ITERATIONS, CredentialName, ScramMechanism
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.kafka_clients import BootstrapOption
from stratalog_cli.connect.meta_question import MetaOption
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table
from stratalog_cli.security.certificate_folder import require_none, write_private
from stratalog_cli.security.passwords import generated_password, given_password, salted_password
from stratalog_cli.security.rights_place import rights_place
from stratalog_cli.security.rule_options import rule_words
from stratalog_cli.security.user_mechanism import UserMechanism
from stratalog_cli.terminal.confirmation import YesOption, require_confirmation
from stratalog_cli.terminal.say import say

_LONGEST_NAME: Final = 512
_RULES_SHOWN: Final = 5


class Mechanism(StrEnum):
    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def kind(self) -> ScramMechanism:
        return ScramMechanism[self.value.replace("-", "_")]


UserArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name, without `User:` before it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="List, create and delete users who log in by a password (SCRAM).",
    )
    group.command("list")(list_users)
    group.command("create")(create)
    group.command("delete")(delete)
    app.add_typer(group, name="users")


def list_users(
    bootstrap: BootstrapOption = None, meta: MetaOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """List users and the mechanisms for which they have a password."""
    users = rights_place(bootstrap, meta, is_write=False).users()
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in users])
    elif users:
        rows = [(one.user, one.mechanism.mechanism_name, str(one.iterations)) for one in users]
        print_table(("user", "mechanism", "#iterations"), rows)
    else:
        say("no users yet; create one: stratalog users create NAME")


def _json(one: UserMechanism) -> dict[str, Any]:
    return {"user": one.user, "mechanism": one.mechanism.mechanism_name, "iterations": one.iterations}


def create(
    name: UserArgument,
    mechanism: Annotated[Mechanism, typer.Option(help="Mechanism by which the user logs in.")] = Mechanism.SHA_512,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="Its first line is the password; - is standard input. Default: STRATALOG_NEW_PASSWORD, else one is "
            "made and shown once.",
        ),
    ] = None,
    password_out: Annotated[
        Path | None,
        typer.Option("--password-out", metavar="FILE", help="New file for the password that is made (mode 0600)."),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", help="Work that each guess of the password costs.")
    ] = LEAST_ITERATIONS,
    is_replacing: Annotated[
        bool, typer.Option("--replace", help="Replace the password that the user has for this mechanism.")
    ] = False,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a user, or give one a password for another mechanism.

    The password is never an option: other users of the machine can read those. It leaves this command salted."""
    _check_name(name)
    given = given_password(password_file)
    if given is not None and password_out is not None:
        raise InvalidRequest("--password-out is for a password that is made here: leave out the one that is given")
    if password_out is not None:
        require_none(password_out.parent, (password_out.name,), "name another file")
    password = generated_password() if given is None else given
    shown = salted_password(password, mechanism.kind, iterations)
    place = rights_place(bootstrap, meta, is_write=True)
    if not is_replacing and any(one.mechanism is mechanism.kind for one in place.users(name)):
        raise AlreadyExists(
            f"user {name} has a password for {mechanism} already, and nothing was changed: --replace replaces it"
        )
    if password_out is not None:
        # Before the change: a password that is lost would lock its user out.
        write_private(password_out, password.encode() + b"\n", is_replacing=False)
    try:
        place.put(name, shown)
    except (Rejected, Unavailable):  # nothing was done
        if password_out is not None:
            password_out.unlink(missing_ok=True)
        raise
    told = {"user": name, "mechanism": str(mechanism), "iterations": iterations}
    if output is OutputFormat.JSON:
        print_json(told | ({"password": password} if given is None and password_out is None else {}))
        return
    say(f"user {printable(name)} logs in by {mechanism}", to_stderr=given is None and password_out is None)
    if given is not None:
        return
    if password_out is not None:
        say(f"its password is in {printable(str(password_out))}, which only you can read")
    else:
        say("its password, which is not shown again:", to_stderr=True)
        say(password)


def delete(
    name: UserArgument,
    mechanism: Annotated[Mechanism | None, typer.Option(help="Only its password for this mechanism.")] = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    meta: MetaOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a user: it can log in no more. Rules about it stay, and hold again for one of the same name."""
    place = rights_place(bootstrap, meta, is_write=True)
    found = [one for one in place.users(name) if mechanism is None or one.mechanism is mechanism.kind]
    if not found:
        which = "" if mechanism is None else f" with a password for {mechanism}"
        raise NotFound(f"there is no user {name!r:.80}{which}: `stratalog users list` shows all")
    rules = place.rules(RuleFilter(principal=str(Principal(USER, name))))
    if not yes:
        left = f"; {counted(len(rules), 'rule')} about it would stay" if rules else ""
        require_confirmation(f"delete user {printable(name)} ({_mechanisms(found)}){left}")
    place.drop([CredentialName(one.user, one.mechanism) for one in found])
    if output is OutputFormat.JSON:
        print_json([_json(one) for one in found])
    else:
        say(f"deleted user {printable(name)}: {counted(len(found), 'password')} ({_mechanisms(found)})")
    _say_what_stays(name, rules)


def _say_what_stays(name: str, rules: Sequence[Rule]) -> None:
    say(
        "it logs in no more; connections that are open end at their next login, which connections.max.reauth.ms asks "
        "for (0: they stay until they end by themselves)",
        to_stderr=True,
    )
    if rules:
        say(
            f"{counted(len(rules), 'rule')} about User:{printable(name)} "
            f"{'stays, and holds' if len(rules) == 1 else 'stay, and hold'} for whoever gets this name next:",
            to_stderr=True,
        )
        for rule in rules[:_RULES_SHOWN]:
            say(f"  {rule_words(rule)}", to_stderr=True)
        if len(rules) > _RULES_SHOWN:
            say(f"  … `stratalog acls list --principal {shlex.quote(f'User:{name}')}` shows all", to_stderr=True)


def _mechanisms(found: Sequence[UserMechanism]) -> str:
    return ", ".join(one.mechanism.mechanism_name for one in found)


def _check_name(name: str) -> None:
    """Clients spell names of SCRAM in ASCII alone. Raises: InvalidRequest."""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isascii() or not name.isprintable():
        raise InvalidRequest(f"user {name[:80]!r}: expected 1 to {_LONGEST_NAME} printable characters of ASCII")
    if name.startswith("User:"):
        raise InvalidRequest(f"user {name[:80]!r}: `User:` stands before a name in rules alone: leave it out here")
