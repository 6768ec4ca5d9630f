"""`stratalog doctor`: checks a data directory or a bucket without a running node, or a Kafka listener of running
ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stratalog.admin_api.wording import human_bytes
from stratalog.model.counting import counted
from stratalog.model.errors import InvalidRequest, NotFound
from stratalog.telemetry.printable import printable
from stratalog_cli.connect.output import (
    OutputFormat,
    OutputOption,
    console,
    is_watched,
    print_fields,
    print_findings,
    print_json,
)
from stratalog_cli.doctor.examination import Examination, Metadata, Step
from stratalog_cli.terminal.say import say

_FINDINGS = 1
_UNREACHABLE = 3


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    place: Annotated[
        str | None, typer.Argument(metavar="PATH_OR_BUCKET_URL", help="A data directory, or an object store's URL.")
    ] = None,
    bucket: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With a data directory: also check this bucket against its metadata."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "--bootstrap",
            "-b",
            metavar="HOST:PORT[,HOST:PORT...]",
            help="Instead of a place: Kafka listeners, with the login of --client-config or of the context that names "
            "them.",
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="With --bootstrap-server: what this client may do with the topic; may be repeated.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check stored data: identities, CRCs, digests against seal records, gaps, missing and unexplained files. Or check
    listeners: address, TLS, certificate, host name, login, mechanism, the addresses that clients are sent to, and with
    --topic what the client may do.

    Also checks the settings of an S3 bucket: whether it exists and can be used, and whether its lifecycle rules would
    delete data. To test access, one object is put below probe/ and deleted again; nothing else is changed.
    Exit code 1 if something is wrong, 3 if the bucket could not be reached or used. Warnings and hints do not count.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("checking"),
        BarColumn(pulse_style="dim"),
        TextColumn("{task.description}", markup=False),
    )
    watched = console(to_stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=watched, transient=True, disable=not is_watched()) as progress:
        task = progress.add_task("", total=None)

        def step(what: str) -> None:
            progress.update(task, description=_tail(printable(what)))

        if bootstrap is not None:
            examinations = _examine_listeners(place, bucket, bootstrap, topics or (), step)
        elif topics:
            raise InvalidRequest("--topic says what a client may do: give the listener by --bootstrap-server HOST:PORT")
        elif place is None:
            raise InvalidRequest("say what to check: a data directory, a bucket's URL, or --bootstrap-server HOST:PORT")
        else:
            examinations = examine(place, bucket, step)
    if output is OutputFormat.JSON:
        print_json([_as_json(seen) for seen in examinations])
    else:
        for seen in examinations:
            _print(seen)
    if any(seen.errors and seen.why_unchecked is None for seen in examinations):
        raise typer.Exit(_FINDINGS)
    if any(seen.why_unchecked is not None for seen in examinations):
        raise typer.Exit(_UNREACHABLE)


def _examine_listeners(
    place: str | None, bucket: str | None, bootstrap: str, topics: Sequence[str], step: Step
) -> list[Examination]:
    from stratalog.connect.brokers import parse
    from stratalog_cli.connect.target_address import bootstrap_target
    from stratalog_cli.doctor.listener import check_listeners

    if place is not None or bucket is not None:
        raise InvalidRequest("--bootstrap-server checks listeners: leave out the place of data, or check it by itself")
    asked = bootstrap_target(bootstrap)
    addresses = [parse(one) for one in asked.addresses.split(",")]
    return check_listeners(addresses, asked.client_settings, topics, step)


def examine(place: str, bucket: str | None, step: Step) -> list[Examination]:
    """Raises: NotFound, InvalidRequest when there is nothing to check; Unavailable when a bucket cannot be listed."""
    from stratalog.objects.urls import is_url
    from stratalog_cli.doctor.directory import check_directory, is_data_directory, read_metadata

    path = Path(place)
    if not is_url(place):
        _require_one_place(place, path)
    if is_url(place) or not is_data_directory(path):
        if bucket is not None:
            raise InvalidRequest("--bucket goes with a data directory, and the place is none: give one place, or both")
        return [asyncio.run(_examine_bucket(place, None, step))]
    seen = Examination(str(path), step)
    metadata = read_metadata(path, seen)
    check_directory(path, metadata, seen)
    if bucket is None:
        return [seen]
    return [seen, asyncio.run(_examine_bucket(bucket, metadata, step))]


def _require_one_place(place: str, path: Path) -> None:
    from stratalog_cli.cluster.directory import ClusterDirectory

    if not path.exists():
        from stratalog.objects.urls import parse_url

        parse_url(place)  # raises for a text that is not a path either, without repeating it
        raise NotFound(
            f"{path} does not exist; give a data directory or an object store's URL (s3://…, gs://…, az://…, file:///…)"
        )
    if not path.is_dir():
        raise InvalidRequest(f"{path} is a file; look into it with `stratalog dump {path}`")
    if ClusterDirectory(path).exists:
        raise InvalidRequest(
            f"{path} is the directory of a cluster: give the data directory of one node, such as {path / 'node-1'}"
        )


async def _examine_bucket(url: str, metadata: Metadata | None, step: Step) -> Examination:
    from stratalog.objects import open_store
    from stratalog_cli.doctor.bucket import check_bucket
    from stratalog_cli.doctor.bucket_settings import check_settings

    store = open_store(url)
    seen = Examination(store.url, step)
    try:
        if await check_settings(url, store, seen):
            await check_bucket(store, metadata, seen)
    except InvalidRequest as error:  # what was found of the settings is kept
        seen.error(seen.place, f"the bucket cannot be listed: {error}", "correct the URL: region, endpoint or bucket")
        seen.why_unchecked = str(error)
    finally:
        await store.close()
    return seen


def _tail(what: str) -> str:
    return what if len(what) <= 60 else "…" + what[-59:]


def _as_json(seen: Examination) -> dict[str, object]:
    return {
        "place": seen.place,
        "is_checked": seen.why_unchecked is None,
        "segments": seen.segments,
        "objects": seen.objects,
        "batch_bytes": seen.batch_bytes,
        "settings": seen.settings,
        "errors": seen.errors,
        "warnings": seen.warnings,
        "hints": seen.hints,
        "findings": [finding.model_dump(mode="json") for finding in seen.findings],
    }


def _print(seen: Examination) -> None:
    if seen.settings:
        print_fields(seen.settings.items(), title=seen.place)
    if seen.findings:
        print_findings(seen.findings)
    if seen.why_unchecked is not None:
        say(f"{printable(seen.place)}: not checked")
        return
    is_clean = not seen.errors and not seen.warnings
    verdict = "clean" if is_clean else f"{counted(seen.errors, 'error')}, {counted(seen.warnings, 'warning')}"
    if seen.hints:
        verdict += f", {counted(seen.hints, 'hint')}"
    if seen.is_listener:
        say(f"{printable(seen.place)}: {verdict}")
        return
    objects = f", {counted(seen.objects, 'object')}" if seen.objects else ""
    checked = f"{counted(seen.segments, 'segment')}{objects}, {human_bytes(seen.batch_bytes)} of batches"
    say(f"{printable(seen.place)}: {verdict}: {checked}")
