"""The `stratalog` command: picks the command's module, runs it, and turns errors into messages and exit codes.

`stratalog start` is a server's start, so it loads only what it needs: the module of the command that is asked for is
imported, and no other (rich alone costs 30 ms and 8 MB). Help and completion load them all.

Exit codes: 0 done, 1 findings (verify, doctor, dump of damaged data) or one of several nodes did not answer, 2 usage or
refused, 3 unavailable or unknown.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from stratalog.model.errors import Corrupt, OutcomeUnknown, StratalogError, Unavailable
from stratalog.settings.relations import require_assertions
from stratalog_cli.say import say, say_error

FINDINGS: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3

COMPLETE_VARIABLE: Final = "_STRATALOG_COMPLETE"

COMMANDS: Final = {
    "start": "stratalog_cli.start_command",
    "meta": "stratalog_cli.meta_command",
    "node": "stratalog_cli.node_command",
    "cluster": "stratalog_cli.cluster_command",
    "status": "stratalog_cli.status",
    "topics": "stratalog_cli.topics",
    "nodes": "stratalog_cli.nodes",
    "rebalance": "stratalog_cli.rebalance",
    "mounts": "stratalog_cli.mounts",
    "segments": "stratalog_cli.segments",
    "snapshot": "stratalog_cli.snapshot_command",
    "locate": "stratalog_cli.segments",
    "seal": "stratalog_cli.segments",
    "verify": "stratalog_cli.verify",
    "dump": "stratalog_cli.dump",
    "doctor": "stratalog_cli.doctor",
    "completion": "stratalog_cli.completion",
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


class _ReportingGroup(TyperGroup):
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
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Stratalog: tiered message storage that speaks the Kafka protocol.",
    )
    app.callback()(_options)
    for module in dict.fromkeys(COMMANDS[name] for name in COMMANDS if name in commands):
        importlib.import_module(module).register(app)
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
) -> None:
    """Stratalog: tiered message storage that speaks the Kafka protocol."""


def main() -> None:
    require_assertions()
    if COMPLETE_VARIABLE in os.environ:
        # The shell asks what could come next: through the environment, with no arguments of the command's own.
        from typer._completion_classes import completion_init  # typer registers its shells by an option only

        completion_init()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    app = build_app((wanted,) if wanted in COMMANDS else tuple(COMMANDS))
    app(prog_name="stratalog")


if __name__ == "__main__":
    main()
