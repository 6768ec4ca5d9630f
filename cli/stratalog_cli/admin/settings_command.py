"""`stratalog settings [WORD]`: keys, defaults, bounds and meanings, without a node."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from stratalog.model.errors import NotFound
from stratalog.settings.describe import SettingDescription, describe_settings
from stratalog.settings.page import bounds_text, default_text
from stratalog_cli.connect.output import OutputFormat, OutputOption, print_json, print_table


def _keys() -> list[str]:
    """For completion."""
    return sorted({one.key for one in describe_settings()})


def register(app: typer.Typer) -> None:
    app.command("settings")(settings)


def settings(
    word: Annotated[
        str | None,
        typer.Argument(
            metavar="WORD",
            help="Only settings with this word in their key or meaning. Default: all.",
            autocompletion=_keys,
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the settings of processes and topics: key, default, allowed values, and meaning."""
    found = matching(word or "")
    if not found:
        raise NotFound(f"no setting has {word!r:.80} in its key or its meaning; `stratalog settings` lists all")
    if output is OutputFormat.JSON:
        print_json([asdict(one) | {"type": one.type.name.lower()} for one in found])
        return
    rows = [
        (one.key, one.scope, default_text(one).replace("`", ""), bounds_text(one), one.description) for one in found
    ]
    print_table(("key", "of a", "default", "allowed", "meaning"), rows, give_up=("allowed", "of a"), flows=("meaning",))


def matching(word: str) -> list[SettingDescription]:
    """A key that is the word comes alone."""
    known, folded = describe_settings(), word.casefold()
    if exact := [one for one in known if one.key.casefold() == folded]:
        return exact
    return [one for one in known if folded in one.key.casefold() or folded in one.description.casefold()]
