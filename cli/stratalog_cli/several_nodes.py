"""Questions to several nodes: `--admin HOST:PORT,HOST:PORT,…` names them, and who was not asked is said.

Each node knows the metadata of all, but of disks only its own. One that does not answer is named on standard error, and
the others are asked all the same; the command ends with exit code 1 then, for it does not tell all that it was asked
for. Nodes that nobody named are told as such, and are no failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.model.errors import InvalidRequest, Unavailable
from stratalog.telemetry.printable import printable
from stratalog_cli.say import say

T = TypeVar("T")
_INCOMPLETE = 1


class Nodes:
    def __init__(self, addresses: str, *, timeout_s: float = 30.0) -> None:
        """Raises: InvalidRequest for what is no address."""
        named = list(dict.fromkeys(one.strip() for one in addresses.split(",") if one.strip()))
        if not named:
            raise InvalidRequest("no admin address: expected HOST:PORT, or several separated by commas")
        self.clients = [AdminClient(address, timeout_s=timeout_s) for address in named]
        self.silent: list[AdminClient] = []
        """Those that did not answer, told already."""

    def first(self, ask: Callable[[AdminClient], T]) -> T:
        """The answer of the first that can be reached: to what any node can do. Raises what it raises; Unavailable when
        none is reached."""
        *others, last = self.clients
        for client in others:
            try:
                return ask(client)
            except Unavailable as error:
                self._is_silent(client, error)
        return ask(last)

    def each(self, ask: Callable[[AdminClient], T]) -> list[T]:
        """The answers of all that answer. Raises: what the only one raised; Unavailable when none answers."""
        if len(self.clients) == 1:
            return [ask(self.clients[0])]
        found: list[T] = []
        for client in self.clients:
            try:
                found.append(ask(client))
            except Unavailable as error:
                self._is_silent(client, error)
        if not found:
            raise Unavailable("none of the nodes answers; see above")
        return found

    def end(self) -> None:
        """The last step of a command that asked each. Raises: typer.Exit where one of those named did not answer."""
        if self.silent:
            raise typer.Exit(_INCOMPLETE)

    def _is_silent(self, client: AdminClient, error: Unavailable) -> None:
        self.silent.append(client)
        say(f"not asked: {printable(str(error))}", to_stderr=True)


def tell_not_asked(asked: Iterable[int], wanted: Iterable[int], what: str) -> list[int]:
    """Says on standard error which nodes would have had more to say, and why. Returns them."""
    missing = sorted(set(wanted) - set(asked))
    if missing:
        names = ", ".join(map(str, missing))
        word = "node" if len(missing) == 1 else "nodes"
        say(f"not asked: {word} {names}, {what}; name their admin addresses in --admin, too", to_stderr=True)
    return missing
