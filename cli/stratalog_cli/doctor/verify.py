"""`stratalog verify`: has a node check every digest of its segments, in both tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from stratalog.admin_api.client import AdminClient
from stratalog.admin_api.models import Finding, VerifyDone, VerifyRequest, VerifySegment, VerifyStart
from stratalog.admin_api.wording import human_bytes
from stratalog.model.counting import counted
from stratalog.model.errors import Unavailable
from stratalog_cli.connect.offered import MaybeTopicArgument
from stratalog_cli.connect.output import (
    AdminOption,
    OutputFormat,
    OutputOption,
    console,
    is_watched,
    print_findings,
    print_json,
)
from stratalog_cli.connect.several_nodes import Nodes, warn_of_unasked
from stratalog_cli.terminal.say import say

_FINDINGS = 1


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    topic: MaybeTopicArgument = None,
    shard: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this shard.")] = None,
    admin: AdminOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check every batch and digest against the seal records, in both tiers. Exit code 1 on findings.

    Each node checks its own disk and the object store; several nodes are asked one after another. Exit code 1 also if
    one of them does not answer."""
    nodes = Nodes(admin)
    request = VerifyRequest(topic=topic, shard=shard)
    answers = nodes.each(lambda node: _check(node, request, len(nodes.clients) > 1))
    done, findings = _together(answers)
    if output is OutputFormat.JSON:
        print_json(
            {**done.model_dump(mode="json"), "findings": [finding.model_dump(mode="json") for finding in findings]}
        )
    else:
        _print(done, findings)
    asked = [report.node_id for report, _ in answers]
    warn_of_unasked(asked, done.other_holders, "where copies are of what was checked")
    if done.errors:
        raise typer.Exit(_FINDINGS)
    nodes.end()


def _together(answers: Sequence[tuple[VerifyDone, list[Finding]]]) -> tuple[VerifyDone, list[Finding]]:
    """What is in the object store each of them checks: it counts once."""
    if len(answers) == 1:
        return answers[0]
    reports = [done for done, _ in answers]
    findings = [finding for _, several in answers for finding in several]
    distinct = list({(one.severity, one.place, one.what): one for one in findings}.values())
    done = VerifyDone(
        segments=max(one.segments for one in reports),
        local_bytes=sum(one.local_bytes for one in reports),
        cold_bytes=max(one.cold_bytes for one in reports),
        errors=sum(one.severity == "error" for one in distinct),
        warnings=sum(one.severity == "warning" for one in distinct),
        node_id=reports[0].node_id,
        other_holders=sorted(
            {node for one in reports for node in one.other_holders} - {one.node_id for one in reports}
        ),
    )
    return done, distinct


def _check(node: AdminClient, request: VerifyRequest, is_named: bool) -> tuple[VerifyDone, list[Finding]]:
    """What one node found; a bar shows its progress. `is_named`: findings name the node of each file."""
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
        for line in node.verify(request):
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
        raise Unavailable("the check ended early; read the log of the node, then run it again")
    if is_named:
        prefix = f"node {done.node_id}: "
        findings = [
            one.model_copy(update={"place": one.place if "://" in one.place else prefix + one.place})
            for one in findings
        ]
    return done, findings


def _print(done: VerifyDone, findings: list[Finding]) -> None:
    if findings:
        print_findings(findings)
    tiers = f"{human_bytes(done.local_bytes)} local, {human_bytes(done.cold_bytes)} cold"
    checked = f"{counted(done.segments, 'segment')}, {tiers}"
    verdict = "clean" if not findings else f"{counted(done.errors, 'error')}, {counted(done.warnings, 'warning')}"
    say(f"{verdict}: {checked}")
