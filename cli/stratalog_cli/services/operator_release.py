"""`stratalog operator release`: releases objects that are being deleted and wait for an operator that is gone."""

from __future__ import annotations

import asyncio
import os

import typer

from stratalog_cli.terminal.say import say, say_error
from stratalog_operator.announce import Announcer
from stratalog_operator.kube.connect import configuration, connected, identity
from stratalog_operator.letting_go import held, let_go_all, served_kinds
from stratalog_operator.metas import HttpMetaDoors
from stratalog_operator.passes import Passes
from stratalog_operator.stats import OperatorStats

WAITS = 1


def release_deleted(namespaces: tuple[str, ...]) -> None:
    """Raises: typer.Exit with 1 when something still waits; StratalogError."""
    before, after = asyncio.run(_released(namespaces))
    for name in sorted({*before} - {*after}):
        say(f"released: {name}")
    for name in after:
        say_error(f"still waits: {name}; its status says for what (`kubectl describe`)")
    if after:
        raise typer.Exit(WAITS)
    if not before:
        say("nothing that is being deleted waits for an operator")


async def _released(namespaces: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """What waited before and what does afterwards."""
    stats, metas = OperatorStats(), HttpMetaDoors()
    async with connected(await configuration(os.environ)) as kubernetes:
        try:
            served = await served_kinds(kubernetes)
            before = await held(kubernetes, namespaces, served)
            passes = Passes(kubernetes, metas, Announcer(kubernetes, stats, identity(os.environ)), stats)
            await let_go_all(kubernetes, passes, namespaces, served)
            return before, await held(kubernetes, namespaces, served)
        finally:
            await metas.close()
