"""The `stratalog` command: picks the command's module, runs it, and turns errors into messages and exit codes.

`stratalog start` is a server's start, so it loads only what it needs: the module of the command that is asked for is
imported, and no other (rich alone costs 30 ms and 8 MB). Help and completion load them all.

Exit codes: 0 done, 1 findings (verify, doctor, dump of damaged data) or one of several nodes did not answer, 2 usage or
refused, 3 unavailable or unknown.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

from stratalog_cli.terminal.missing_module import end_for_missing_module

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as error:
    end_for_missing_module(error)

from stratalog.connect.client_settings import VARIABLE as CLIENT_CONFIG_VARIABLE
from stratalog.connect.contexts import CONTEXT_VARIABLE
from stratalog.connect.shown_token import VARIABLE
from stratalog.model.errors import Corrupt, OutcomeUnknown, StratalogError, Unavailable
from stratalog.settings.relations import require_assertions
from stratalog_cli.terminal.plain_help import PlainHelp
from stratalog_cli.terminal.say import say, say_error

FINDINGS: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3

_OPTIONS_WITH_VALUE: Final = ("--token-file", "--client-config", "--context")
_LONGEST_SUMMARY: Final = 1_000
COMPLETE_VARIABLE: Final = "_STRATALOG_COMPLETE"

COMMANDS: Final = {
    "start": "stratalog_cli.services.start_command",
    "meta": "stratalog_cli.services.meta_command",
    "node": "stratalog_cli.services.node_command",
    "cluster": "stratalog_cli.cluster.command",
    "operator": "stratalog_cli.services.operator_command",
    "status": "stratalog_cli.admin.status",
    "context": "stratalog_cli.admin.context_command",
    "topics": "stratalog_cli.topics.topics",
    "produce": "stratalog_cli.records.produce",
    "consume": "stratalog_cli.records.consume",
    "groups": "stratalog_cli.groups.groups",
    "nodes": "stratalog_cli.admin.nodes",
    "rebalance": "stratalog_cli.admin.rebalance",
    "mounts": "stratalog_cli.admin.mounts",
    "segments": "stratalog_cli.topics.segments",
    "snapshot": "stratalog_cli.snapshots.command",
    "locate": "stratalog_cli.topics.segments",
    "find": "stratalog_cli.records.find",
    "seal": "stratalog_cli.topics.segments",
    "recover": "stratalog_cli.admin.recover",
    "pipeline": "stratalog_cli.pipeline.command",
    "users": "stratalog_cli.security.users",
    "acls": "stratalog_cli.security.acls",
    "quotas": "stratalog_cli.security.quotas",
    "certs": "stratalog_cli.security.certs",
    "settings": "stratalog_cli.admin.settings_command",
    "verify": "stratalog_cli.doctor.verify",
    "dump": "stratalog_cli.doctor.dump",
    "doctor": "stratalog_cli.doctor.doctor",
    "completion": "stratalog_cli.terminal.completion",
}
"""Command -> the module whose `register(app)` adds it."""


def exit_code_of(error: StratalogError) -> int:
    match error:
        case Corrupt():
            return FINDINGS
        case Unavailable() | OutcomeUnknown():
            return UNAVAILABLE
        case _:
            return USAGE


class _WholeSummaries(TyperGroup):
    """Its help shows the first sentence of each command, on as many lines as it takes."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_LONGEST_SUMMARY)) for name, one in commands if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class _ReportingGroup(_WholeSummaries):
    """Reports our errors as one line on standard error, for every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except StratalogError as error:
            say_error(error)
            raise typer.Exit(exit_code_of(error)) from None
        except BrokenPipeError:
            # The reader of our output (head, less) has seen enough.
            sys.stderr.close()
            raise typer.Exit(0) from None


def build_app(commands: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """The application with these commands, in the order of COMMANDS."""
    app = typer.Typer(
        cls=_ReportingGroup,
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Stratalog: tiered message storage that speaks the Kafka protocol.",
    )
    app.callback()(_options)
    for module in dict.fromkeys(COMMANDS[name] for name in COMMANDS if name in commands):
        importlib.import_module(module).register(app)
    for command in app.registered_commands:
        command.cls = PlainHelp
    for group in app.registered_groups:
        assert group.typer_instance is not None
        group.typer_instance.info.cls = _WholeSummaries
        for command in group.typer_instance.registered_commands:
            command.cls = PlainHelp
    return app


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        say(f"stratalog {version('stratalog')}")
        raise typer.Exit(0)


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            envvar=VARIABLE,
            metavar="FILE",
            help="File whose first line is the token that commands send to nodes and to the meta service.",
        ),
    ] = None,
    client_config: Annotated[
        str | None,
        typer.Option(
            "--client-config",
            envvar=CLIENT_CONFIG_VARIABLE,
            metavar="FILE",
            help="File with the settings by which commands log in to Kafka listeners: security.protocol, "
            "sasl.jaas.config, …",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="Context of the cluster to use. [env var: STRATALOG_CONTEXT]"),
    ] = None,
) -> None:
    """Stratalog: tiered message storage that speaks the Kafka protocol."""
    if token_file is not None:
        os.environ[VARIABLE] = token_file
    if client_config is not None:
        os.environ[CLIENT_CONFIG_VARIABLE] = client_config
    if context is not None:
        # The option goes before addresses in the environment.
        os.environ[CONTEXT_VARIABLE] = context
        for overruled in ("STRATALOG_ADMIN", "STRATALOG_META", "STRATALOG_BOOTSTRAP", "STRATALOG_BUCKET"):
            os.environ.pop(overruled, None)


def _command_of(words: Sequence[str]) -> str:
    """The first word that is neither an option nor an option's value."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
    return words[at] if at < len(words) else ""


def _occupy_standard_descriptors() -> None:
    """Open those that were closed at the start as the null device: the next file would get the number, a segment's
    perhaps, and what a library writes to standard error would go into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))


def main() -> None:
    _occupy_standard_descriptors()
    if os.getpid() == 1:
        # The kernel drops a signal to the first process of a container for which it has no handler, and a server has
        # its own only once it has been loaded. Until then, as in every other command, there is nothing to put in order.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    require_assertions()
    if COMPLETE_VARIABLE in os.environ:
        # The shell asks what could come next: through the environment, with no arguments of the command's own.
        from typer._completion_classes import completion_init  # typer registers its shells by an option only

        completion_init()
    wanted = _command_of(sys.argv[1:])
    try:
        app = build_app((wanted,) if wanted in COMMANDS else tuple(COMMANDS))
        app(prog_name="stratalog")
    except ModuleNotFoundError as error:
        end_for_missing_module(error)
    except KeyboardInterrupt:  # while the command was loaded; once it runs, it handles Ctrl-C itself
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
