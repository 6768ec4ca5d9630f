"""Real processes: everything is lost but the bucket and the directory of a node that had left in volume mode. By the
commands of the page the cluster is made again, and what that directory alone has is read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.meta_process import MetaProcess
from support.node_process import NodeProcess
from support.read_only_process import ReadOnlyProcess
from support.topics import create_topic, produce, read_over_changes
from support.waiting import eventually_sync

STRATALOG = str(Path(sys.executable).with_name("stratalog"))
QUICK = {"remote.upload.interval.ms": "100", "retire.verify.interval.ms": "300", "offsets.topic.num.partitions": "1"}
VALUES = [b"flight-%d" % number for number in range(200)]


def stratalog(*arguments: str) -> str:
    done = subprocess.run([STRATALOG, *arguments], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Machines:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = str(folder / "bucket")
        self.started: list[MetaProcess | NodeProcess] = []

    def meta(self, name: str) -> MetaProcess:
        settings = ("node.lease.ms=1000", "retire.verify.interval.ms=300", "meta.snapshot.interval.ms=100")
        place = ("--data", str(self.folder / name), "--bucket", self.bucket)
        meta = MetaProcess(self.folder, name, *place, settings=settings)
        self.started.append(meta)
        return meta.start()

    def node(self, meta: MetaProcess, number: int) -> NodeProcess:
        arguments = ("--meta", meta.url, "--id", str(number), "--bucket", self.bucket)
        place = self.folder / f"node-{number}"
        node = NodeProcess(place, None, dict(QUICK), verb=("node", "start"), arguments=arguments)
        self.started.append(node)
        return node.start()

    def kill(self) -> None:
        for one in reversed(self.started):
            one.kill()
        self.started.clear()


@pytest.mark.fault("rebuilds-metadata-cluster-retired")
def test_what_only_a_retired_directory_has_is_read_by_the_rebuilt_cluster(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    reader: ReadOnlyProcess | None = None
    try:
        meta = machines.meta("meta")
        first = machines.node(meta, 1)
        # Before there is another node, so that it is all on node 1.
        create_topic(first.bootstrap, "flights", settings={"remote.storage.enable": "false"})
        produce(first.bootstrap, "flights", VALUES, patience_s=60)
        machines.node(meta, 2)
        stratalog("nodes", "retire", "1", "--mode", "volume", "--meta", meta.url)

        def status() -> dict[str, object]:
            (told,) = json.loads(stratalog("nodes", "status", "1", "--meta", meta.url, "--output", "json"))
            return dict(told["retirement"])

        eventually_sync(lambda: status()["step"] == "mount" and not first.is_running, 60)
        reader = ReadOnlyProcess(tmp_path / "node-1", meta.url, tmp_path / "volume.log")
        reader.until_ready()
        eventually_sync(lambda: status()["step"] == "done", 60)
        reader.stop()
        eventually_sync(lambda: _is_in_the_bucket(tmp_path), 20)
        machines.kill()
        shutil.rmtree(tmp_path / "meta")
        shutil.rmtree(tmp_path / "node-2")

        place = ("--bucket", machines.bucket, "--data", str(tmp_path / "again"), "--nodes", "4")
        told = json.loads(stratalog("meta", "rebuild", *place, "--output", "json"))
        assert told["lost"] == [] and sum(one["to"] - one["from"] for one in told["in_volumes"]) == len(VALUES)
        assert [(one["name"], one["node_id"]) for one in told["mounts"]] == [("tier/1", 1)]

        meta = machines.meta("again")
        node = machines.node(meta, 4)
        reader = ReadOnlyProcess(tmp_path / "node-1", meta.url, tmp_path / "volume-again.log")
        reader.until_ready()
        assert read_over_changes(node.bootstrap, "flights", len(VALUES)) == VALUES
        (mount,) = json.loads(stratalog("mounts", "list", "--admin", node.admin, "--output", "json"))
        assert (mount["name"], mount["holder"], mount["mode"]) == ("tier/1", 4, "volume")
        reader.stop()
    finally:
        if reader is not None:
            reader.end()
        machines.kill()


def _is_in_the_bucket(folder: Path) -> bool:
    """The newest snapshot of the metadata knows that the node has left."""
    place = ("--bucket", str(folder / "bucket"), "--data", str(folder / "never"), "--nodes", "4")
    told = json.loads(stratalog("meta", "rebuild", *place, "--dry-run", "--output", "json"))
    return [one["step"] for one in told["retired_nodes"]] == ["done"]
