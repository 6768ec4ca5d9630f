"""`stratalog verify`: has a node check every digest of its segments, in both tiers."""

from __future__ import annotations

from typing import Annotated

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import Finding, VerifyDone, VerifyRequest, VerifySegment, VerifyStart
from stratalog.admin_api.wording import counted, human_bytes
from stratalog.model.errors import Unavailable
from stratalog_cli.output import (
    DEFAULT_ADMIN,
    AdminOption,
    OutputFormat,
    OutputOption,
    console,
    is_watched,
    print_findings,
    print_json,
)
from stratalog_cli.say import say

_FINDINGS = 1


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="All topics when left out.")] = None,
    shard: Annotated[int | None, typer.Option(min=0, help="Only this shard.")] = None,
    admin: AdminOption = DEFAULT_ADMIN,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check every batch and digest against the seal records, in both tiers. Exit code 1 on findings."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    findings: list[Finding] = []
    done: VerifyDone | None = None
    columns = (
        TextColumn("verifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(to_stderr=True), transient=True, disable=not is_watched()) as progress:
        task = progress.add_task("", total=None)
        checked_bytes = 0
        for line in AdminClient(admin).verify(VerifyRequest(topic=topic, shard=shard)):
            match line:
                case VerifyStart(segments=segments):
                    progress.update(task, total=segments)
                case VerifySegment():
                    findings += line.findings
                    checked_bytes += line.local_bytes + line.cold_bytes
                    progress.update(task, advance=1, description=f"segments, {human_bytes(checked_bytes)}")
                case VerifyDone():
                    done = line
    if done is None:
        raise Unavailable("the check ended early; look at the node's log, then run it again")
    if output is OutputFormat.JSON:
        print_json(
            {**done.model_dump(mode="json"), "findings": [finding.model_dump(mode="json") for finding in findings]}
        )
    else:
        _print(done, findings)
    if done.errors:
        raise typer.Exit(_FINDINGS)


def _print(done: VerifyDone, findings: list[Finding]) -> None:
    if findings:
        print_findings(findings)
    tiers = f"{human_bytes(done.local_bytes)} local, {human_bytes(done.cold_bytes)} cold"
    checked = f"{counted(done.segments, 'segment')}, {tiers}"
    verdict = "clean" if not findings else f"{counted(done.errors, 'error')}, {counted(done.warnings, 'warning')}"
    say(f"{verdict}: {checked}")
