"""Damaged objects are put back from another bucket or from a node's files, byte for byte, or not at all."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from support.pipeline_extra import NO_PIPELINE

pytest.importorskip("fastavro", reason=NO_PIPELINE)

from confluent_kafka import Producer
from typer.testing import CliRunner

from stratalog.formats.bucket.object_names import index_file_name, segment_file_name
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES, encode_segment_header
from stratalog.formats.segments.index_block import decode_index_block
from stratalog.model.segment import RemoteState
from stratalog.objects import ObjectStore, open_store
from stratalog_cli.entry import build_app
from stratalog_pipeline.jobs.repair.verify import Verified, verify
from stratalog_pipeline.jobs.runners import one_by_one
from support.cold_data import ColdShard, batches_from
from support.cold_reading import put_shard
from support.files import copy_below, files_below
from support.hostile_batches import with_header_times
from support.node_process import NodeProcess
from support.topics import create_topic
from support.waiting import eventually_sync

APP = build_app()

Damage = Callable[[Path], None]


def build(folder: Path, fill: Callable[[ObjectStore], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        store = open_store(str(folder))
        try:
            return await fill(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def cold(store: ObjectStore) -> ColdShard:
    """Two complete segments with key indexes, and a third with one committed bundle."""
    shard = ColdShard(store, has_key_index=True)
    await shard.add([batches_from(0, 5), batches_from(15, 5, codec=4), batches_from(30, 5)])
    await shard.add([batches_from(45, 5, epoch=1)])
    await shard.add([batches_from(60, 5, epoch=2)], state=RemoteState.PARTIAL, is_bundled=True)
    await put_shard(shard)
    return shard


@pytest.fixture
def buckets(tmp_path: Path) -> tuple[Path, Path]:
    """A bucket, and a copy of it."""
    build(tmp_path / "bucket", cold)
    shutil.copytree(tmp_path / "bucket", tmp_path / "copy")
    return tmp_path / "bucket", tmp_path / "copy"


def repaired(bucket: Path, *places: Path, **options: Any) -> Verified:
    return verify(str(bucket), one_by_one, repair_from=[str(place) for place in places], **options)


def objects_in(bucket: Path) -> dict[str, bytes]:
    return {str(path.relative_to(bucket)): path.read_bytes() for path in bucket.rglob("*") if path.is_file()}


def flip(path: Path, at: int | None = None) -> None:
    """A bit of the byte there, or of the one in the middle."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2 if at is None else at] ^= 4
    path.write_bytes(body)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: dict[str, Damage] = {"a flipped bit": flip, "cut short": cut, "gone": Path.unlink}


@pytest.mark.parametrize(
    ("ending", "damage"),
    [
        (ending, damage)
        for ending in ("chunk", "index", "keys", "manifest", "bundle")
        for damage in DAMAGES
        if (ending, damage) != ("manifest", "gone")  # without it a bucket says that retention took the segment
    ],
)
def test_an_object_is_put_back_from_another_bucket(buckets: tuple[Path, Path], ending: str, damage: str) -> None:
    bucket, copy = buckets
    before = objects_in(bucket)
    broken = sorted(bucket.rglob(f"*.{ending}"))[0]
    DAMAGES[damage](broken)
    assert repaired(bucket).findings, "nothing is put back unless somebody says from where"
    told = repaired(bucket, copy)
    assert (told.findings, told.not_repaired) == ([], [])
    assert [Path(key).name for key in told.repaired] == [broken.name]
    assert objects_in(bucket) == before
    assert (repaired(bucket, copy).repaired, objects_in(bucket)) == ([], before), "what is whole is left alone"


def test_several_damages_of_one_segment_are_mended_at_once(buckets: tuple[Path, Path]) -> None:
    bucket, copy = buckets
    before = objects_in(bucket)
    for broken in (*bucket.rglob("*.chunk"), *bucket.rglob("*.keys")):
        flip(broken)
    told = repaired(bucket, copy)
    assert (told.findings, len(told.repaired)) == ([], 6)
    assert objects_in(bucket) == before


def test_a_dry_run_reports_what_it_would_put_and_puts_nothing(buckets: tuple[Path, Path]) -> None:
    bucket, copy = buckets
    flip(broken := next(bucket.rglob("*.chunk")))
    before = objects_in(bucket)
    told = repaired(bucket, copy, is_dry_run=True)
    assert [Path(key).name for key in told.repaired] == [broken.name]
    assert told.findings
    assert objects_in(bucket) == before


def test_the_command_reports_what_it_put_back_and_what_is_left(buckets: tuple[Path, Path]) -> None:
    bucket, copy = buckets
    flip(first := next(bucket.rglob("*.chunk")))
    flip(second := next(bucket.rglob("*.bundle")))
    Path.unlink(copy / second.relative_to(bucket))

    def run(*words: str) -> Any:
        command = ["pipeline", "verify", "--bucket", str(bucket), "--threads", "0", "--output", "json", *words]
        ran = CliRunner().invoke(APP, command)
        return ran.exit_code, json.loads(ran.stdout)

    code, told = run()
    assert (code, len(told["findings"]), told["repaired"]) == (1, 2, [])
    code, told = run("--repair", str(copy))
    assert code == 1, "something is left"
    assert [Path(key).name for key in told["repaired"]] == [first.name]
    assert [second.name in finding["place"] for finding in told["findings"]] == [True]
    assert second.name in told["not_repaired"][0]


def test_a_copy_that_is_damaged_too_is_passed_over(buckets: tuple[Path, Path], tmp_path: Path) -> None:
    bucket, copy = buckets
    shutil.copytree(copy, tmp_path / "second")
    before = objects_in(bucket)
    name = sorted(path.relative_to(bucket) for path in bucket.rglob("*.chunk"))[0]
    flip(bucket / name)
    cut(copy / name)
    told = repaired(bucket, copy)
    assert (len(told.findings), told.repaired) == (1, [])
    assert str(copy) in told.not_repaired[0]
    told = repaired(bucket, copy, tmp_path / "second")
    assert (told.findings, objects_in(bucket)) == ([], before)


@pytest.mark.parametrize("broken", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_whole_object_of_other_records_is_not_taken(tmp_path: Path, broken: tuple[int, ...]) -> None:
    """The same names, the same offsets, other values: such as a bucket that went its own way since it was copied."""

    def fill(value_bytes: int) -> Callable[[ObjectStore], Awaitable[Any]]:
        async def run(store: ObjectStore) -> None:
            shard = ColdShard(store, topic_id=UUID(int=77))
            await shard.add([batches_from(at, 5, value_bytes=value_bytes) for at in (0, 15, 30)])

        return run

    bucket, other = tmp_path / "bucket", tmp_path / "other"
    build(bucket, fill(100))
    build(other, fill(120))
    assert {*objects_in(bucket)} == {*objects_in(other)}
    shutil.copytree(bucket, tmp_path / "copy")
    chunks = sorted(bucket.rglob("*.chunk"))
    for number in broken:
        flip(chunks[number])
    before = objects_in(bucket)
    told = repaired(bucket, other)
    assert told.findings
    assert (told.repaired, objects_in(bucket)) == ([], before)
    told = repaired(bucket, other, tmp_path / "copy")
    assert (told.findings, objects_in(bucket)) == ([], objects_in(tmp_path / "copy"))


def test_parts_of_several_sources_may_prove_each_other(buckets: tuple[Path, Path], tmp_path: Path) -> None:
    bucket, copy = buckets
    second = tmp_path / "second"
    shutil.copytree(copy, second)
    before = objects_in(bucket)
    for name in sorted(path.relative_to(bucket) for path in bucket.rglob("*.chunk"))[:2]:
        flip(bucket / name)
        Path.unlink((copy if name.name.startswith("0" * 20) else second) / name)
    told = repaired(bucket, copy, second)
    assert (told.findings, objects_in(bucket)) == ([], before)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("node")
    settings = {"remote.upload.interval.ms": 50, "remote.upload.chunk.bytes": 20_000}
    with NodeProcess(root / "data", str(root / "bucket"), settings) as running:
        yield running


def fill_segments(node: NodeProcess, topic: str) -> Path:
    """A new topic with two segments or more that are complete in the bucket. Returns the folder of one's objects."""
    bucket = node.data_dir.parent / "bucket"
    known = set(files_below(bucket, ".manifest"))
    create_topic(node.bootstrap, topic, 1, {"index.keys": "true", "segment.bytes": 60_000})
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 1, "enable.idempotence": True})
    for number in range(2_000):
        producer.produce(topic, b"%060d" % number, b"flight-%d" % (number % 300))
        if number % 50 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0

    def complete() -> set[Path]:
        return set(files_below(bucket, ".manifest")) - known

    eventually_sync(lambda: len(complete()) >= 2, 60)
    return min(complete()).parent


@pytest.mark.parametrize("ending", ["chunk", "index", "keys"])
def test_an_object_is_made_again_of_a_running_nodes_files(node: NodeProcess, ending: str) -> None:
    topic, bucket = f"made-of-{ending}", node.data_dir.parent / "bucket"
    folder = fill_segments(node, topic)
    before = objects_in(folder)
    for broken in folder.glob(f"*.{ending}"):
        flip(broken)
    told = repaired(bucket, node.data_dir, topics=[topic])
    assert (told.findings, told.not_repaired) == ([], [])
    assert told.repaired
    assert objects_in(folder) == before, "byte for byte"


@pytest.mark.parametrize(
    ("has_claimed_times", "version"),
    [
        pytest.param(False, 3, id="sealed and published by this release"),
        pytest.param(True, 3, id="sealed by an older release, published by this one"),
        pytest.param(True, 2, id="sealed and published by an older release"),
    ],
)
def test_an_index_is_made_again_in_the_layout_that_it_had(
    tmp_path: Path, has_claimed_times: bool, version: int
) -> None:
    bucket, segments = tmp_path / "bucket", tmp_path / "data" / "node" / "segments"
    # Long enough for index points, and their times in the headers are not those of the records.
    batches = [with_header_times(one, max_ms=-1) for one in batches_from(0, 20, value_bytes=5_000)]

    async def fill(store: ObjectStore) -> None:
        shard = ColdShard(store, has_claimed_times=has_claimed_times, index_version=version)
        await shard.add([batches])
        await put_shard(shard)

    build(bucket, fill)
    (index,) = files_below(bucket, ".index")
    body = index.read_bytes()
    block = decode_index_block(body, source=str(index))
    assert int.from_bytes(body[8:10], "big") == version
    assert len(block.points) > 2
    assert block.points.has_true_times is not has_claimed_times
    key, folder = block.identity.key, segments / str(block.identity.topic_id) / str(block.identity.shard)
    folder.mkdir(parents=True)
    header = encode_segment_header(block.identity)
    (folder / segment_file_name(key.base_offset, key.epoch)).write_bytes(header + b"".join(batches))
    (folder / index_file_name(key.base_offset, key.epoch)).write_bytes(body)
    before = objects_in(bucket)
    flip(index)
    told = repaired(bucket, tmp_path / "data")
    assert (told.findings, told.not_repaired) == ([], [])
    assert [Path(one).name for one in told.repaired] == [index.name]
    assert objects_in(bucket) == before, "byte for byte"


def test_a_segment_file_that_is_damaged_gives_nothing(node: NodeProcess, tmp_path: Path) -> None:
    """Only findings of this topic, and of a chunk that a manifest names: objects of other tests in the bucket, or an
    upload that no metadata name yet, do not count."""
    source, bucket, copy = node.data_dir.parent / "bucket", tmp_path / "bucket", tmp_path / "data"
    folder = bucket / fill_segments(node, "damaged-files").relative_to(source)
    copy_below(source, bucket)
    copy_below(node.data_dir / "node" / "segments", copy / "node" / "segments")
    flip(broken := min(folder.glob("*.chunk")))
    before = broken.read_bytes()
    for file in copy.rglob("*.seg"):
        flip(file, SEGMENT_HEADER_BYTES + 100)
    told = repaired(bucket, copy, topics=["damaged-files"])
    assert told.repaired == []
    assert broken.read_bytes() == before
    assert told.not_repaired
    assert all(broken.name in why for why in told.not_repaired)
