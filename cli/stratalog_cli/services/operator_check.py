"""`stratalog operator check`: asks as the operator's account, and says what is missing."""

from __future__ import annotations

import asyncio
import os

import typer

from stratalog_cli.terminal.say import say, say_error
from stratalog_operator.installed import problems
from stratalog_operator.kube.connect import configuration, connected, own_namespace

FINDINGS = 1


def check_operator(namespaces: tuple[str, ...], lease_namespace: str | None, lease_name: str) -> None:
    """Raises: typer.Exit with 1 on findings; StratalogError when the API server does not answer."""
    found = asyncio.run(_found(namespaces, lease_namespace or own_namespace(os.environ), lease_name))
    for problem in found:
        say_error(problem)
    if found:
        raise typer.Exit(FINDINGS)
    say("installed correctly: the kinds are served, every right is there, one operator leads")


async def _found(namespaces: tuple[str, ...], lease_namespace: str, lease_name: str) -> list[str]:
    async with connected(await configuration(os.environ)) as kubernetes:
        return await problems(kubernetes, namespaces, lease_namespace, lease_name)
