"""The address that a command goes to: from its option or the environment, else from the context.

Only questions fall back to the usual port of this machine. A write without an option, an environment variable or a
context is refused, and it names on standard error the node and the cluster that it goes to. A question that used the
fallback names the address that it asked. A context's token and its login are sent to the addresses of that context
alone, also where an option names some of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.admin_api.client import DEFAULT_ADDRESS
from stratalog.connect.client_settings import PLAIN_TEXT, ClientSettings, read_client_settings
from stratalog.connect.contexts import Context, client_config, context_of, contexts_file, read_contexts
from stratalog.connect.shown_certificate import shown_tls, tls_of
from stratalog.connect.shown_token import shown_token, token_of
from stratalog.model.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from stratalog.model.tokens import Token
    from stratalog.tls.outgoing import ClientTls

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_WITH_BOTH: Final = ("find", "doctor")
"""Commands that ask nodes, and log in to a Kafka listener as well."""
_WHERE: Final = {
    "meta": ". A node of `stratalog start` has such an address only if meta.listen is set; `stratalog status` shows "
    "such a node without it"
}


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses, and how they came about."""

    addresses: str
    context: Context | None = None
    is_guessed: bool = False
    """The user named no addresses: these are the default ones, on this machine."""

    @property
    def token(self) -> Token | None:
        """Raises: InvalidRequest for a file that cannot be read, or holds no token."""
        if (named := shown_token()) is not None:
            return named
        return None if self.context is None else token_of(self.context.token_file or "")

    @property
    def tls(self) -> ClientTls | None:
        """What is spoken with addresses of https://. Raises: InvalidRequest for files that cannot be used."""
        if (named := shown_tls()) is not None:
            return named
        folder = "" if self.context is None else self.context.certificate_folder or ""
        return tls_of(folder, named_by=f"the certificate folder{self.by_context}")

    @property
    def client_settings(self) -> ClientSettings:
        """How Kafka clients log in there. Raises: NotFound, Unavailable, InvalidRequest for a file that cannot be
        used."""
        named = self.client_config
        return read_client_settings(Path(named), os.environ) if named else PLAIN_TEXT

    @property
    def client_config(self) -> str:
        """The file of these settings; empty: none."""
        return client_config(os.environ, self.context)

    @property
    def by_context(self) -> str:
        return "" if self.context is None else f" (context {self.context.name})"

    def require_cluster(self, cluster_id: str, where: str) -> None:
        """Raises: Conflict where the context is of another cluster."""
        if self.context is not None and self.context.cluster not in (None, cluster_id):
            raise Conflict(
                f"{where} is of cluster {cluster_id}, but context {self.context.name} is of cluster "
                f"{self.context.cluster}: nothing was done. Name another context, or, where this one is right, "
                f"`stratalog context add {self.context.name} --replace …` with its addresses"
            )


def admin_target(named: str | None) -> Target:
    """Raises: NotFound, InvalidRequest for a context that is not there or names no admin address, and for a login that
    would not be used."""
    _refuse_unused_login()
    return _asked("admin", named, DEFAULT_ADDRESS)


def bootstrap_target(named: str | None) -> Target:
    return _asked("bootstrap", named, DEFAULT_BOOTSTRAP)


def meta_target(named: str | None) -> Target:
    """The meta service has no default address. Raises: InvalidRequest if the user named none, too, and for a login
    that would not be used."""
    _refuse_unused_login()
    return _asked("meta", named, None)


def _refuse_unused_login() -> None:
    """A login that was given on the command line, and that a command for HTTP would pass over: its user would take the
    answer for what that login may do. (The variable and the context are for all commands alike.)"""
    from typer._click.globals import get_current_context  # typer brings click along under its own name

    command = get_current_context(silent=True)
    if command is None:
        return
    source = command.find_root().get_parameter_source("client_config")
    if source is None or source.name != "COMMANDLINE" or command.command_path.split()[-1] in _WITH_BOTH:
        return
    words = " ".join(command.command_path.split()[1:])
    raise InvalidRequest(
        f"--client-config is a login for Kafka listeners, and `{words}` asks an admin address or the meta service: it "
        "goes by the token (--token-file, or that of the context), whose holder may do everything. Leave "
        "--client-config out"
    )


def _asked(what: str, named: str | None, usual: str | None) -> Target:
    if named is not None:
        return Target(named, context_of(what, named, os.environ))
    context = read_contexts(contexts_file(os.environ)).chosen(os.environ)
    if context is not None:
        addresses = getattr(context, what)
        if addresses is None:
            raise InvalidRequest(
                f"context {context.name} names no --{what}: give the option, or add it with "
                f"`stratalog context add {context.name} --replace …` and all its addresses{_WHERE.get(what, '')}"
            )
        return Target(addresses, context)
    if usual is None:
        raise InvalidRequest(
            f"nothing names the {what} service: give --{what} URL, set STRATALOG_{what.upper()}, or make a context: "
            f"`stratalog context add NAME --{what} URL`{_WHERE.get(what, '')}"
        )
    return Target(usual, is_guessed=True)


def refuse_guess(who: str, option: str, address: str) -> InvalidRequest:
    """The error for a write whose destination the user did not name."""
    return InvalidRequest(
        f"nothing says where this is to be written, and {who} answers at {address}: nothing was done. If that is the "
        f"one, `stratalog context add NAME --{option} {address}` names it once for all commands, "
        f"--{option} {address} for this one"
    )
