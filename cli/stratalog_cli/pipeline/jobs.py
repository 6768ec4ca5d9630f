"""From the options of `stratalog pipeline …` to the jobs, and from what came of them to plain values."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stratalog.connect.contexts import client_config, context_of
from stratalog.connect.http_login import HttpLogin, http_login
from stratalog.model.errors import InvalidRequest
from stratalog.objects import open_store
from stratalog.telemetry.plots import bar_chart
from stratalog_cli.connect.local_bytes import LocalBytes
from stratalog_pipeline.cold.cutting import Asked
from stratalog_pipeline.jobs.archive.archive import Archive, ArchiveOptions
from stratalog_pipeline.jobs.archive.piece import RecordSchema
from stratalog_pipeline.jobs.archive.schema_files import files_of_ids, schema_of, schema_of_writers
from stratalog_pipeline.jobs.columns.table_layout import Kind, TableFormat, TimePartition
from stratalog_pipeline.jobs.cost import Cost, Prices, cost_of, parse_prices, with_local
from stratalog_pipeline.jobs.export.export import ExportOptions, Shape
from stratalog_pipeline.jobs.export.export import export as export_records
from stratalog_pipeline.jobs.repair.compact import CompactOptions
from stratalog_pipeline.jobs.repair.compact import compact as compact_segments
from stratalog_pipeline.jobs.repair.verify import verify as verify_bucket
from stratalog_pipeline.jobs.runners import Runner
from stratalog_pipeline.jobs.sinks.sink import SinkOptions
from stratalog_pipeline.jobs.sinks.sink import sink as sink_records
from stratalog_pipeline.jobs.sinks.target import TargetAddress, TargetKind
from stratalog_pipeline.sending.login import NO_LOGIN, KafkaLogin, is_secret, login_with

OnProgress = Callable[[str, int, int], None]
_MOST_BYTES = 16 << 20


def archive(
    bucket: str,
    to: str,
    topic: str,
    kind: str,
    by: str,
    form: str,
    schemas: tuple[str, ...],
    message: str,
    is_confluent: bool,
    cluster: str | None,
    meta: str | None,
    is_gap_allowed: bool,
    is_dry_run: bool,
    run: Runner,
    step: OnProgress,
) -> dict[str, Any]:
    given = _schema(Kind(kind), schemas, message, is_confluent)
    if is_confluent and kind == Kind.RAW:
        raise InvalidRequest("--confluent is for kinds that are looked into: raw records keep their bytes as they are")
    if given is None and kind in (Kind.AVRO, Kind.PROTOBUF):
        raise InvalidRequest(f"--schema FILE is missing: {kind} records cannot be read without it")
    options = ArchiveOptions(
        bucket,
        to,
        topic,
        Kind(kind),
        TimePartition(by),
        schema=given,
        is_confluent=is_confluent,
        table=TableFormat(form),
        cluster_id=cluster,
        meta_url=meta,
        meta_login=_meta_login(meta),
        is_dry_run=is_dry_run,
        is_gap_allowed=is_gap_allowed,
    )
    return asdict(Archive(options, run, step).archive())


def _schema(kind: Kind, given: tuple[str, ...], message: str, is_confluent: bool) -> RecordSchema | None:
    by_id = files_of_ids(given)
    if by_id:
        if kind is not Kind.AVRO or not is_confluent:
            raise InvalidRequest("--schema ID=FILE is for Avro records that name their schema: add --confluent")
        return schema_of_writers({number: (_read(path), str(path)) for number, path in by_id.items()})
    return schema_of(kind, _read(Path(given[0])), given[0], message, is_confluent) if given else None


def verify(
    bucket: str,
    topics: tuple[str, ...],
    cluster: str | None,
    meta: str | None,
    repair_from: tuple[str, ...],
    is_dry_run: bool,
    run: Runner,
    step: OnProgress,
) -> dict[str, Any]:
    found = verify_bucket(
        bucket,
        run,
        topics=topics or None,
        cluster_id=cluster,
        meta_url=meta,
        meta_login=_meta_login(meta),
        repair_from=repair_from,
        is_dry_run=is_dry_run,
        on_progress=step,
    )
    return asdict(found)


def compact(
    bucket: str,
    meta: str,
    topics: tuple[str, ...],
    target_bytes: int,
    is_dry_run: bool,
    is_packing: bool,
    run: Runner,
    step: OnProgress,
) -> dict[str, Any]:
    options = CompactOptions(bucket, meta, topics, target_bytes, is_dry_run, is_packing, _meta_login(meta))
    return asdict(compact_segments(options, run, step))


def export(
    bucket: str,
    to: str,
    shape: str,
    topics: tuple[str, ...],
    snapshot: str | None,
    ranges: tuple[int | None, int | None, int | None, int | None],
    settings: tuple[tuple[str, str], ...],
    files: tuple[tuple[str, str], ...],
    cluster: str | None,
    meta: str | None,
    is_dry_run: bool,
    run: Runner,
    step: OnProgress,
) -> dict[str, Any]:
    from_offset, to_offset, from_ms, to_ms = ranges
    asked = Asked(from_offset=from_offset, to_offset=to_offset, from_ms=from_ms, to_ms=to_ms)
    options = ExportOptions(
        bucket,
        to,
        Shape(shape),
        topics,
        asked,
        cluster_id=cluster,
        meta_url=meta,
        meta_login=_meta_login(meta),
        snapshot=snapshot,
        login=_kafka_login(to, settings, files) if shape == Shape.KAFKA else NO_LOGIN,
        is_dry_run=is_dry_run,
    )
    return asdict(export_records(options, run, step))


def sink(
    bucket: str,
    kind: str,
    url: str,
    table: str | None,
    topic: str,
    user: str,
    files: tuple[str, ...],
    cluster: str | None,
    meta: str | None,
    is_gap_allowed: bool,
    is_dry_run: bool,
    run: Runner,
    step: OnProgress,
) -> dict[str, Any]:
    """`files`: those of the password and of the trusted certificates, empty where there is none."""
    options = SinkOptions(
        bucket,
        TargetAddress(TargetKind(kind), url, table or topic, user, *files),
        topic,
        cluster_id=cluster,
        meta_url=meta,
        meta_login=_meta_login(meta),
        is_dry_run=is_dry_run,
        is_gap_allowed=is_gap_allowed,
    )
    return asdict(sink_records(options, run, step))


def cost(
    bucket: str,
    prices: Path | None,
    plot: Path | None,
    cluster: str | None,
    meta: str | None,
    local: LocalBytes | None,
    step: OnProgress,
) -> dict[str, Any]:
    """Raises: Conflict when the nodes that were named are of another cluster than the bucket."""
    table = Prices() if prices is None else parse_prices(_read(prices).decode("utf-8", "replace"), str(prices))

    async def estimate() -> Cost:
        store = open_store(bucket)
        try:
            return await cost_of(
                store, table, cluster_id=cluster, meta_url=meta, meta_login=_meta_login(meta), on_progress=step
            )
        finally:
            await store.close()

    found = asyncio.run(estimate())
    node_ids: tuple[int, ...] = ()
    if local is not None and local.is_of(found.cluster_id):
        found = with_local(found, local.by_topic, table)
        node_ids = local.node_ids
    if plot is not None:
        rows = [(f"{one.tier}: {one.topic}", (one.storage_price, one.request_price)) for one in found.rows]
        title = f"{found.cluster_id}: {found.price:.2f} {found.currency} a month"
        plot.write_text(bar_chart(title, rows, ("storage", "requests"), "{:.4f}".format), encoding="utf-8")
    result: dict[str, Any] = json.loads(json.dumps(asdict(found)))
    return result | {"nodes": list(node_ids)}


def _meta_login(meta: str | None) -> HttpLogin:
    """Addresses of the context in use are reached with its token."""
    return http_login(os.environ, None if meta is None else context_of("meta", meta, os.environ))


def _kafka_login(servers: str, settings: Iterable[tuple[str, str]], files: Iterable[tuple[str, str]]) -> KafkaLogin:
    """Raises: InvalidRequest for a secret on the command line, and for a login beside that of the client's settings."""
    for key, _ in settings:
        if is_secret(key):
            raise InvalidRequest(
                f"--client {key} is a secret, and every user of this machine sees a command line: give "
                f"--client {key}=@FILE, or a file with the client's settings (stratalog --client-config FILE …)"
            )
    return login_with(client_config(os.environ, context_of("bootstrap", servers, os.environ)), dict(settings), files)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidRequest(f"{path} has more than {_MOST_BYTES} bytes: is it the right file?")
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
