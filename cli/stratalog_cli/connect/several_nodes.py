"""Sends requests to several nodes, which `--admin HOST:PORT,HOST:PORT,…` names, and reports nodes that were not asked.

Without the option the context names the nodes (`stratalog_cli.connect.target_address`). Each node knows the metadata of
all, but only its own disk. A node that does not answer is named on standard error, and the others are still asked; the
command then ends with exit code 1, because its answer is incomplete. Nodes of the cluster that the user did not name
are reported, but are not a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.model.errors import Conflict, InvalidRequest, Unavailable
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.target_address import admin_target, refuse_guess
from stratalog_cli.terminal.say import say

T = TypeVar("T")
_INCOMPLETE = 1


class Nodes:
    def __init__(self, named: str | None, *, timeout_s: float = 30.0, is_write: bool = False) -> None:
        """`named`: the value of the option or of the environment. A write prints its destination first.

        Raises: InvalidRequest for an invalid address or a file without tokens; NotFound for an unknown context."""
        self._asked = admin_target(named)
        addresses = list(dict.fromkeys(one.strip() for one in self._asked.addresses.split(",") if one.strip()))
        if not addresses:
            raise InvalidRequest("no admin address: expected HOST:PORT, or several separated by commas")
        token, tls = self._asked.token, self._asked.tls
        self.clients = [AdminClient(address, timeout_s=timeout_s, token=token, tls=tls) for address in addresses]
        self.silent: list[AdminClient] = []
        """Those that did not answer, told already."""
        self._is_write = is_write
        self._known: set[AdminClient] = set()
        self._cluster_id: str | None = None

    def first(self, ask: Callable[[AdminClient], T]) -> T:
        """The answer of the first that can be reached: to what any node can do. Raises what it raises; Unavailable when
        none is reached."""
        *others, last = self.clients
        for client in others:
            try:
                return self._ask(client, ask)
            except Unavailable as error:
                self._is_silent(client, error)
        return self._ask(last, ask)

    def each(self, ask: Callable[[AdminClient], T]) -> list[T]:
        """The answers of all that answer. Raises: what the only one raised; Unavailable when none answers."""
        if len(self.clients) == 1:
            return [self._ask(self.clients[0], ask)]
        found: list[T] = []
        for client in self.clients:
            try:
                found.append(self._ask(client, ask))
            except Unavailable as error:
                self._is_silent(client, error)
        if not found:
            raise Unavailable("none of the nodes answers; see above")
        return found

    def learn_all_nodes(self) -> None:
        """For a write that needs each of them. Raises: what keeps it from one of them."""
        for client in self.clients:
            self._learn_nodes(client)

    def _ask(self, client: AdminClient, ask: Callable[[AdminClient], T]) -> T:
        if client not in self._known and (self._is_write or self._asked.is_guessed):
            self._learn_nodes(client)
        return ask(client)

    def _learn_nodes(self, client: AdminClient) -> None:
        """Raises: InvalidRequest for a write to a default address, Conflict if it would reach another cluster."""
        status = client.status()
        node, address = (
            f"node {status.node_id} of cluster {printable(status.cluster_id)}",
            client.base.partition("//")[2],
        )
        if not self._is_write:
            say(f"asked {node} at {address}: nothing names another (`stratalog context add`)", to_stderr=True)
        else:
            if self._asked.is_guessed:
                raise refuse_guess(node, "admin", address)
            self._asked.require_cluster(status.cluster_id, address)
            if self._cluster_id not in (None, status.cluster_id):
                raise Conflict(
                    f"{address} is {node}, others that were named are of cluster {self._cluster_id}: nothing was done "
                    "there; name nodes of one cluster"
                )
            self._cluster_id = status.cluster_id
            say(f"to {node} at {address}{self._asked.by_context}", to_stderr=True)
        self._known.add(client)

    def end(self) -> None:
        """The last step of a command that asked each. Raises: typer.Exit where one of those named did not answer."""
        if self.silent:
            raise typer.Exit(_INCOMPLETE)

    def _is_silent(self, client: AdminClient, error: Unavailable) -> None:
        if client in self.silent:
            return
        self.silent.append(client)
        say(f"left out: {printable(str(error))}", to_stderr=True)


def warn_of_unasked(asked: Iterable[int], wanted: Iterable[int], what: str) -> list[int]:
    """Says on standard error which nodes would have had more to say, and why. Returns them."""
    missing = sorted(set(wanted) - set(asked))
    if missing:
        names = ", ".join(map(str, missing))
        is_one = len(missing) == 1
        word, where = ("node", "its admin address") if is_one else ("nodes", "their admin addresses")
        say(
            f"not asked: {word} {names}, {what}; add {where} to --admin",
            to_stderr=True,
        )
    return missing
