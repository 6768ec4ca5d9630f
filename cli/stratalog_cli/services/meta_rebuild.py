"""`stratalog meta rebuild`: opens bucket and store, shows how far it is, tells what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.admin_api.wording import human_bytes
from stratalog.model.counting import counted, nodes_named
from stratalog.model.ids import SegmentKey
from stratalog.model.mounts import MountMode
from stratalog.objects import open_store
from stratalog_cli.connect.output import OutputFormat, console, is_watched, print_fields, print_json, print_table
from stratalog_cli.terminal.say import say
from stratalog_meta.bucket.rebuild import OnProgress, Rebuild, Rebuilt
from stratalog_meta.bucket.scan import Hole
from stratalog_meta.clocks import wall_ms
from stratalog_meta.stores.etcd.address import EtcdAddress
from stratalog_meta.stores.meta_store import MetaStore

if TYPE_CHECKING:
    from stratalog_meta.stores.etcd.access import EtcdAccess

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    bucket: str
    place: Path | EtcdAddress
    access: EtcdAccess | None
    nodes: tuple[int, ...]
    cluster_id: str | None
    is_dry_run: bool
    without_volumes: tuple[int, ...] = ()


def run_rebuild(options: RebuildOptions, output: OutputFormat) -> None:
    """Raises what `Rebuild` raises."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(to_stderr=True), transient=True, disable=not is_watched()) as progress:
        task = progress.add_task("", total=None)

        def on_progress(what: str, done: int, total: int | None) -> None:
            progress.update(task, description=what, completed=done, total=total)

        rebuilt = asyncio.run(_run(options, on_progress))
    if output is OutputFormat.JSON:
        print_json(report_of(rebuilt, options.is_dry_run))
    else:
        _print(rebuilt, options)


async def _run(options: RebuildOptions, on_progress: OnProgress) -> Rebuilt:
    bucket = open_store(options.bucket)
    try:
        rebuild = Rebuild(bucket, options.nodes, wall_ms, on_progress, options.without_volumes)
        cluster_id = options.cluster_id or await rebuild.find_cluster()
        if options.is_dry_run:
            return (await rebuild.plan(cluster_id))[0]
        async with open_target(options.place, options.access) as target:
            return await rebuild.run(cluster_id, target)
    finally:
        await bucket.close()


@asynccontextmanager
async def open_target(place: Path | EtcdAddress, access: EtcdAccess | None) -> AsyncIterator[MetaStore]:
    """The store that a meta service would start on. Raises: Conflict where one leads there, Unavailable."""
    if isinstance(place, Path):
        from stratalog_meta.stores.rocksdb import RocksStore

        rocks = RocksStore(place / "meta")
        try:
            yield rocks
        finally:
            await rocks.close()
        return
    from stratalog_meta.stores.etcd.client import EtcdClient
    from stratalog_meta.stores.etcd.leadership import EtcdLeadership
    from stratalog_meta.stores.etcd.store import EtcdStore

    client = EtcdClient(place.endpoints, access=access)
    try:
        leadership = EtcdLeadership(client, place.key_prefix, "rebuild")
        await leadership.lead_now()
        try:
            etcd = EtcdStore(client, place.key_prefix, leadership, source=str(place))
            try:
                yield etcd
            finally:
                await etcd.close()
        finally:
            await leadership.resign()
    finally:
        await client.close()


def report_of(rebuilt: Rebuilt, is_dry_run: bool) -> dict[str, Any]:
    """As JSON tells it."""
    plan, head = rebuilt.plan, rebuilt.head

    def named(key: SegmentKey) -> dict[str, Any]:
        return {
            "topic": rebuilt.topic_name(key.topic_id),
            "shard": key.shard,
            "epoch": key.epoch,
            "base_offset": key.base_offset,
        }

    return {
        "cluster_id": rebuilt.cluster_id,
        "is_dry_run": is_dry_run,
        "snapshot": {"number": head.id.number, "version": head.id.version, "created_ms": head.created_ms},
        "nodes": list(plan.nodes),
        "topics": len(plan.topics) + len(plan.taken_in),
        "shards": len(plan.shards),
        "segments": rebuilt.segments,
        "segments_to_complete": sum(1 for _ in plan.to_publish),
        "bytes_put": rebuilt.bytes_put,
        "objects_listed": rebuilt.objects,
        "lost": [named(one.segment) | {"from": one.base_offset, "to": one.end_offset} for one in rebuilt.lost],
        "unreadable": [named(one.segment) | _hole(one) for one in rebuilt.holes],
        "deleted_since": [named(key) for key in rebuilt.gone],
        "in_volumes": [
            named(one.key) | {"from": one.chain_end, "to": one.end_offset, "nodes": list(one.volumes)}
            for one in rebuilt.in_volumes
        ],
        "retired_nodes": [
            {
                "node_id": node.info.node_id,
                "storage_id": node.info.storage_id,
                "mode": node.retirement.mode.value,
                "step": node.retirement.step.value,
            }
            for node in plan.leavers.nodes
            if node.retirement is not None
        ],
        "mounts": [
            {
                "name": mount.name,
                "mode": mount.mode.value,
                "node_id": mount.node_id,
                "storage_id": mount.storage_id,
                "topics": [topic.name for topic in mount.topics],
                "expires_ms": mount.expires_ms,
            }
            for mount in plan.leavers.mounts
        ],
        "not_restored": [
            {"kind": one.kind.value, "name": one.name, "why": one.why, "next_step": one.next_step}
            for one in plan.leavers.left_out
        ],
        "taken_in": [topic.name for topic in plan.taken_in],
        "left_alone": [named(key) for key in rebuilt.unused] + [{"topic": str(one)} for one in plan.orphans],
        "damaged": rebuilt.damaged,
        "shut_out_disks": [
            {"node_id": node.info.node_id, "storage_id": node.info.storage_id} for node in rebuilt.earlier_nodes
        ],
        "ends": [
            {
                "topic": rebuilt.topic_name(shard.key.topic_id),
                "shard": shard.key.shard,
                "log_start_offset": shard.log_start_offset,
                "end_offset": shard.end_offset,
            }
            for shard in plan.shards
        ],
    }


def _hole(one: Hole) -> dict[str, Any]:
    return {"from": one.base_offset, "to": one.end_offset, "object": one.object_key, "why": one.why}


def _print(rebuilt: Rebuilt, options: RebuildOptions) -> None:
    report = report_of(rebuilt, options.is_dry_run)
    age_s = max(0, wall_ms() - rebuilt.head.created_ms) // 1_000
    snapshot = f"{report['snapshot']['number']}, version {report['snapshot']['version']}, {age_s} s old"
    done = "to be completed in the bucket" if options.is_dry_run else "completed in the bucket"
    fields = [
        ("cluster", rebuilt.cluster_id),
        ("snapshot", snapshot),
        ("nodes", ", ".join(map(str, rebuilt.plan.nodes))),
        ("topics, shards", f"{report['topics']}, {report['shards']}"),
        ("segments", f"{report['segments']}, {report['segments_to_complete']} of them {done}"),
        ("put into the bucket", human_bytes(rebuilt.bytes_put)),
        ("mounts, retired nodes", f"{len(report['mounts'])}, {len(report['retired_nodes'])}"),
    ]
    print_fields(fields, title="would be rebuilt" if options.is_dry_run else "rebuilt")
    rows = [
        (*_place(one), f"[{one['from']}, {one['to']})", "lost: known, and not in the bucket") for one in report["lost"]
    ]
    rows += [
        (*_place(one), f"[{one['from']}, {one['to']})", f"cannot be read, {one['object']}: {one['why']}")
        for one in report["unreadable"]
    ]
    rows += [
        (*_place(one), f"[{one['from']}, {one['to']})", f"only in the directory of node {one['nodes'][0]}: mount it")
        for one in report["in_volumes"]
    ]
    rows += [(*_place(one), "all", "deleted by retention since the snapshot") for one in report["deleted_since"]]
    rows += [(name, "", "", "", "taken in: in no snapshot, settings unknown") for name in report["taken_in"]]
    rows += [(*_place(one), "", "left alone in the bucket: part of no log") for one in report["left_alone"]]
    rows += [(key, "", "", "", f"cannot be used: {why}") for key, why in report["damaged"].items()]
    if rows:
        print_table(["topic", "#shard", "segment", "offsets", "what"], rows[:_SHOWN], flows=("what",))
    if len(rows) > _SHOWN:
        say(f"and {len(rows) - _SHOWN} more: --output json shows all")
    if report["unreadable"]:
        say("what cannot be read stays in its place: put the named objects back, from an older version of the bucket")
    _print_leavers(report)
    if not options.is_dry_run:
        for step in _next_steps(options.place, rebuilt.plan.nodes):
            say(f"next: {step}")


def _next_steps(place: Path | EtcdAddress, nodes: Sequence[int]) -> tuple[str, str]:
    users = (
        "where users log in by SCRAM, give each a password again, as no bucket has it: "
        "`stratalog users create NAME --meta URL`"
    )
    return _start(place, nodes), users


def _start(place: Path | EtcdAddress, nodes: Sequence[int]) -> str:
    empty = "on an empty --data directory" if len(nodes) == 1 else "each on an empty --data directory"
    several = f"start the meta service on it with --bucket, and {nodes_named(nodes)}, {empty}"
    if isinstance(place, Path) and len(nodes) == 1:
        return f"`stratalog start --data {place} --bucket URL`; in a cluster {several}"
    return several


def _print_leavers(report: dict[str, Any]) -> None:
    """Nothing of it is cut: each line asks something of a person."""
    if report["not_restored"]:
        rows = [(one["kind"], one["name"], one["why"], one["next_step"]) for one in report["not_restored"]]
        print_table(["not restored", "name", "why", "what to do"], rows, flows=("why", "what to do"))
    for mount in report["mounts"]:
        if mount["mode"] == MountMode.VOLUME.value:
            only = sum(mount["node_id"] in one["nodes"] for one in report["in_volumes"])
            say(
                f"mount {mount['name']} waits for the directory of node {mount['node_id']}, storage id "
                f"{mount['storage_id']} ({counted(only, 'segment')} only there): `stratalog node start --read-only "
                f"--data DIR --meta URL`, once nodes are up; if it is lost, rebuild with --without-volume "
                f"{mount['node_id']}"
            )


def _place(one: dict[str, Any]) -> tuple[str, str, str]:
    if "shard" not in one:
        return one["topic"], "", ""
    return one["topic"], str(one["shard"]), f"{one['base_offset']}-{one['epoch']}"
