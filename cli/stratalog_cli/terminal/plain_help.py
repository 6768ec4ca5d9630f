"""How help reads: `TOPIC` and `[FILE]...` for arguments, plain words for values and bounds.

typer writes `{TOPIC}`, `TOPIC <str>`, `<int range>` and `[x>=1]`, which only a programmer reads.
"""

from __future__ import annotations

import re
from typing import Any

from typer._click.exceptions import UsageError
from typer.core import TyperCommand

_EXTRAS = re.compile(r"  \[[^\[\]]*\]$")
"""What typer appends to a description: [env var: …; default: …; x>=1; required]."""


_WHERE = {
    "--bootstrap": "--bootstrap HOST:PORT, where Kafka clients connect (--listen of a node)",
    "--admin": "--admin HOST:PORT, the admin address of a node (metrics.listen)",
    "--meta": "--meta URL, the address of the meta service",
    "--bucket": "--bucket URL, the object store",
    "--data": "--data DIR, a data directory",
}
"""How a command learns where to look. Each knows some of them, and it is easy to give another one's."""
_REFUSALS = (
    (r"Input should be a valid integer\b.*", "expected a whole number"),
    (r"Input should be a valid number\b.*", "expected a number"),
    (r"Input should be greater than or equal to ", "expected at least "),
    (r"Input should be less than or equal to ", "expected at most "),
    (r"Value error, ", ""),
)
"""What typer says of a value, as pydantic words it, and in plain words."""


class PlainHelp(TyperCommand):
    """A command whose help names arguments and values in plain words, and which explains itself if it gets an option of
    other commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            error.message = _plainly(error.message)
            given = getattr(error, "option_name", None)
            own = {name for param in self.params for name in param.opts}
            if given in {*_WHERE, "-b"} - own and not getattr(error, "possibilities", None):
                known = [words for name, words in _WHERE.items() if name in own]
                if known:
                    error.message += f". This command takes {' or '.join(known)}"
            raise

    # typer keeps the classes of contexts, formatters and parameters to itself: Any.
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar] if self.options_metavar else []
        return [*pieces, *(_usage(one) for one in self.params if one.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            params = [one for one in self.get_params(ctx) if one.param_type_name == kind]
            rows = [_row(one, record) for one in params if (record := one.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _plainly(message: str) -> str:
    for pattern, words in _REFUSALS:
        message = re.sub(f"^{pattern}", words, message)
    return message


def _usage(argument: Any) -> str:
    name = argument.display_name_raw if argument.required else f"[{argument.display_name_raw}]"
    return name if argument.nargs == 1 else f"{name}..."


def _row(param: Any, record: tuple[str, str]) -> tuple[str, str]:
    name, text = record
    if param.param_type_name == "argument":
        name = param.display_name_raw
    return re.sub(r"<([^<>]*)>", r"\1", name), _EXTRAS.sub(lambda found: in_words(found.group()), text)


def in_words(extras: str) -> str:
    """The bounds of a number in words. That a count is not negative needs none."""
    bounds = [re.sub(r"^x<=", "at most ", re.sub(r"^x>=", "at least ", one)) for one in extras.strip(" []").split("; ")]
    bounds = [re.sub(r"^(-?[\d.]+)<=x<=", r"\1 to ", one) for one in bounds if one != "at least 0"]
    return f"  [{'; '.join(bounds)}]" if bounds else ""
