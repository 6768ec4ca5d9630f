"""`stratalog doctor DIR` on whole and on damaged data directories."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from rocksdict import Options, Rdict
from typer.testing import CliRunner

from stratalog.formats.batches.records import Record, encode_batch
from stratalog.formats.disk.checkpoint import Checkpoint
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.formats.segments.index_points import IndexBuilder
from stratalog.model.ids import SegmentKey
from stratalog.model.segment import RemoteCopy, RemoteState
from stratalog_cli.doctor.directory import check_directory, read_metadata
from stratalog_cli.doctor.examination import Examination
from stratalog_cli.entry import build_app
from stratalog_node.disk.checkpoints import Checkpoints
from stratalog_node.disk.inspection import InspectedFile
from support.stored_cluster import StoredCluster, batches_of, segment_key, store_cluster

APP = build_app()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored")
    store_cluster(root)
    return root


@pytest.fixture
def cluster(original: Path, tmp_path: Path) -> StoredCluster:
    """A copy to damage."""
    shutil.copytree(original, tmp_path / "copy")
    made = store_cluster(tmp_path / "names")
    moved = tmp_path / "copy"
    return StoredCluster(moved / "data", moved / "bucket", type(made.layout)(moved / "data" / "node"), made.keys)


def doctor(*arguments: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings."""
    ran = CliRunner().invoke(APP, ["doctor", *arguments, "--output", "json"])
    assert ran.exit_code in (0, 1), ran.output
    return ran.exit_code, [finding for seen in json.loads(ran.stdout) for finding in seen["findings"]]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_a_whole_directory_is_clean_and_stays_as_it_is(cluster: StoredCluster) -> None:
    before = {path: path.stat().st_mtime_ns for path in cluster.layout.root.rglob("*")}

    code, findings = doctor(str(cluster.data))

    assert (code, findings) == (0, [])
    assert {path: path.stat().st_mtime_ns for path in cluster.layout.root.rglob("*")} == before


DAMAGES: dict[str, tuple[Callable[[StoredCluster], None], str]] = {
    "a flipped bit in a record": (lambda c: flip(c.segment_file(0), SEGMENT_HEADER_BYTES + 200), "CRC"),
    "a flipped bit in a batch's epoch": (lambda c: flip(c.segment_file(0), SEGMENT_HEADER_BYTES + 12), "epoch"),
    "a flipped bit in the header": (lambda c: flip(c.segment_file(1), 40), "CRC"),
    "a sealed segment cut inside a batch": (lambda c: cut(c.segment_file(1), SEGMENT_HEADER_BYTES + 900), "cut short"),
    "a sealed segment without its last batch": (lambda c: _drop_last_batch(c), "end offset is 45"),
    "a sealed segment with a batch too many": (lambda c: _add_batch(c), "end offset is 55"),
    "another segment under the name": (lambda c: shutil.copy(c.segment_file(0), c.segment_file(1)), "identity"),
    "a zeroed page": (lambda c: _zero(c.segment_file(0), 1024, 512), "at byte"),
    "a damaged index block": (lambda c: flip(c.index_file(0), 60), "CRC"),
    "an index block of another segment": (lambda c: shutil.copy(c.index_file(0), c.index_file(1)), "belongs to"),
    "an empty segment file": (lambda c: cut(c.segment_file(0), 0), "cut short"),
    "a sealed segment missing that is nowhere else": (lambda c: c.segment_file(1).unlink(), "are lost here"),
    "no node file": (lambda c: c.layout.node_file.unlink(), "names the node"),
    "a node file of another cluster": (
        lambda c: c.layout.node_file.write_text('{"node_id": 1, "cluster_id": "x"}') and None,
        "belongs to cluster x",
    ),
    "an empty metadata store": (lambda c: _empty_metadata(c), "the metadata store beside it is empty"),
    "a damaged journal header": (lambda c: flip(next(c.layout.journal.iterdir()), 20), "CRC"),
    "no metadata store": (lambda c: [path.unlink() for path in (c.data / "meta").iterdir()] and None, "no metadata"),
}


def _empty_metadata(cluster: StoredCluster) -> None:
    shutil.rmtree(cluster.data / "meta")
    Rdict(str(cluster.data / "meta"), Options(raw_mode=True)).close()


def _drop_last_batch(cluster: StoredCluster) -> None:
    last = len(batches_of(1, 30, 50)[-1])
    path = cluster.segment_file(1)
    cut(path, path.stat().st_size - last)


def _add_batch(cluster: StoredCluster) -> None:
    path = cluster.segment_file(1)
    path.write_bytes(path.read_bytes() + batches_of(1, 50, 55)[0])


def _zero(path: Path, start: int, size: int) -> None:
    data = bytearray(path.read_bytes())
    data[start : start + size] = bytes(size)
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(cluster: StoredCluster, damage: str) -> None:
    apply, words = DAMAGES[damage]
    apply(cluster)

    code, findings = doctor(str(cluster.data))

    errors = [finding for finding in findings if finding["severity"] == "error"]
    assert code == 1
    assert any(words in finding["what"] for finding in errors), errors
    assert all(finding["next_step"] and finding["place"] for finding in findings)


def test_a_torn_tail_of_the_active_segment_is_a_warning(cluster: StoredCluster) -> None:
    path = cluster.segment_file(2)
    cut(path, path.stat().st_size - 7)

    code, findings = doctor(str(cluster.data))

    assert code == 0
    assert [finding["severity"] for finding in findings] == ["warning"]
    assert "torn tail" in findings[0]["what"] and "offset 55" in findings[0]["what"]


@pytest.mark.parametrize("node", ["fills the room ahead", "cuts the room ahead"])
def test_a_segment_that_a_node_works_on_meanwhile_is_clean(
    cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    path = cluster.segment_file(2)
    end = path.stat().st_size
    os.truncate(path, end + 50_000)
    to_write = batches_of(2, 60, 80)
    real = InspectedFile.read

    def read(file: InspectedFile, position: int, size_bytes: int) -> bytes:
        nonlocal end
        is_it = file.name == str(path) and position > 0
        if is_it and node == "cuts the room ahead":
            os.truncate(path, end)
        data = real(file, position, size_bytes)
        if is_it and node == "fills the room ahead" and to_write:
            with path.open("r+b") as opened:
                opened.seek(end)
                end += opened.write(to_write.pop(0))
        return data

    monkeypatch.setattr(InspectedFile, "read", read)
    assert doctor(str(cluster.data)) == (0, [])


@pytest.mark.fault("doctor-finds-segments-newer")
def test_zeros_where_metadata_knows_of_batches_are_no_room_ahead(cluster: StoredCluster) -> None:
    path = cluster.segment_file(2)
    size = path.stat().st_size
    cut(path, size - len(batches_of(2, 50, 60)[-1]))
    os.truncate(path, size + 50_000)
    assert doctor(str(cluster.data)) == (0, [])

    seen = Examination(str(cluster.data), lambda _: None)
    metadata = read_metadata(cluster.data, seen)
    assert metadata is not None
    active = metadata.segments[segment_key(2)]
    metadata.segments[active.key] = replace(active, remote=RemoteCopy(RemoteState.PARTIAL, 60, ()))
    check_directory(cluster.data, metadata, seen)
    assert [finding.what for finding in seen.findings if finding.place == str(path)] == [
        "its batches end at offset 55, but 60 is known to have been written; the object store has the rest"
    ]
    assert seen.errors == 0, "the next start brings it back"


@pytest.mark.fault("doctor-finds-segments-newer")
def test_segments_newer_than_metadata_that_were_put_back_are_data(cluster: StoredCluster) -> None:
    """A start confirms them one after the other; "nothing reads it, so it can be moved away" cost them all."""
    seen = Examination(str(cluster.data), lambda _: None)
    metadata = read_metadata(cluster.data, seen)
    assert metadata is not None
    for epoch in (1, 2):
        del metadata.segments[segment_key(epoch)]
    metadata._last_epoch[segment_key(0).shard_key] = 0
    check_directory(cluster.data, metadata, seen)
    assert "metadata knows no such segment" not in [finding.what for finding in seen.findings]

    cluster.segment_file(1).unlink()
    check_directory(cluster.data, metadata, seen)
    assert "metadata knows no such segment" in [finding.what for finding in seen.findings], "behind a gap nothing does"


def test_a_freed_local_copy_of_a_complete_segment_is_no_loss(cluster: StoredCluster) -> None:
    cluster.segment_file(0).unlink()
    cluster.index_file(0).unlink()

    code, findings = doctor(str(cluster.data))

    assert code == 0
    assert "the object store has the whole segment" in findings[0]["what"]


def test_files_that_no_one_knows_are_pointed_out(cluster: StoredCluster) -> None:
    (cluster.segment_file(0).parent / "notes.txt").write_text("hello")
    stranger = cluster.layout.segment(segment_key(0)._replace(epoch=9, base_offset=900))
    stranger.write_bytes(cluster.segment_file(0).read_bytes())

    code, findings = doctor(str(cluster.data))

    assert code == 0
    assert {Path(finding["place"]).name for finding in findings} == {"notes.txt", stranger.name}


def test_an_unconfirmed_roll_is_data_and_is_checked(cluster: StoredCluster) -> None:
    from stratalog.formats.disk.segment_file import encode_segment_header
    from support.stored_cluster import identity_of

    rolled = cluster.layout.segment(segment_key(0)._replace(epoch=3, base_offset=60))
    batch = encode_batch([Record(60, 1, b"k", b"v")], base_offset=60, epoch=3)
    rolled.write_bytes(encode_segment_header(identity_of(3, 60)) + batch)
    assert doctor(str(cluster.data)) == (0, [])

    flip(rolled, 40)
    code, findings = doctor(str(cluster.data))
    assert code == 1 and findings[0]["place"] == str(rolled)


def test_a_node_of_a_cluster_is_not_asked_for_the_directory_that_was_given(cluster: StoredCluster) -> None:
    shutil.rmtree(cluster.data / "meta")
    code, (finding,) = doctor(str(cluster.data))
    assert (code, finding["severity"]) == (0, "warning")
    assert finding["next_step"].startswith("none for a node of a cluster")
    _, (finding,) = doctor(str(cluster.data / "node"))
    assert finding["next_step"] == "give the directory of --data"


def test_the_directory_of_a_cluster_is_not_mistaken_for_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    ran = CliRunner().invoke(APP, ["doctor", str(tmp_path)])
    assert ran.exit_code == 2 and f"such as {tmp_path / 'node-1'}" in ran.output.replace("\n", "")


def test_neighbours_that_do_not_meet_are_found_without_metadata(cluster: StoredCluster) -> None:
    shutil.rmtree(cluster.data / "meta")
    _drop_last_batch(cluster)
    cluster.index_file(1).unlink()

    code, findings = doctor(str(cluster.data))

    assert code == 1
    assert any("begins at offset 50, the segment before it ends at 45" in finding["what"] for finding in findings)


def test_without_metadata_the_index_block_is_the_measure(cluster: StoredCluster) -> None:
    shutil.rmtree(cluster.data / "meta")
    _drop_last_batch(cluster)

    code, findings = doctor(str(cluster.data))

    assert code == 1
    assert any("its index block says 50" in finding["what"] for finding in findings)


def test_findings_are_shown_as_blocks_whose_places_can_be_copied(cluster: StoredCluster) -> None:
    flip(cluster.segment_file(0), SEGMENT_HEADER_BYTES + 200)

    ran = CliRunner().invoke(APP, ["doctor", str(cluster.data)])

    assert ran.exit_code == 1
    assert f"error: {cluster.segment_file(0)}\n" in ran.stdout and "  next step: " in ran.stdout
    assert "1 error, 0 warnings" in ran.stdout


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "missing", "does not exist"),
        (lambda path: _file(path), "look into it with `stratalog dump"),
    ],
)
def test_a_place_that_cannot_be_checked_says_what_to_give(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    ran = CliRunner().invoke(APP, ["doctor", str(make(tmp_path))])

    assert ran.exit_code == 2
    assert words in ran.output


def _file(path: Path) -> Path:
    (path / "file").write_text("x")
    return path / "file"


@pytest.fixture
def with_checkpoints(cluster: StoredCluster) -> Path:
    """The checkpoint store, with a table in it."""
    path = cluster.layout.checkpoints
    path.mkdir(parents=True, exist_ok=True)
    for _ in range(2):
        store = Checkpoints(path)
        key = SegmentKey(UUID(int=9), 0, 0, 0)
        store.put([Checkpoint(key, 100, 5, -1, -1, IndexBuilder(0).freeze(), ())])
        store.close()
    return path


def closing_line(cluster: StoredCluster) -> tuple[int, str]:
    ran = CliRunner().invoke(APP, ["doctor", str(cluster.data)])
    return ran.exit_code, ran.stdout.strip().splitlines()[-1]


@pytest.mark.fault("checkpoint-store-damaged")
@pytest.mark.parametrize("files", ["MANIFEST-*", "CURRENT", "*.sst"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_a_damaged_checkpoint_store_is_an_error(
    cluster: StoredCluster, with_checkpoints: Path, files: str, how: str
) -> None:
    exit_code, line = closing_line(cluster)
    assert exit_code == 0 and ": clean: " in line
    damaged = max(with_checkpoints.glob(files))
    match how:
        case "flip":
            flip(damaged, damaged.stat().st_size // 3)
        case "cut":
            cut(damaged, damaged.stat().st_size // 2)
        case _:
            damaged.unlink()
    code, findings = doctor(str(cluster.data))
    (error,) = [one for one in findings if one["severity"] == "error"]
    assert code == 1 and error["place"] == str(with_checkpoints) and "sets the store aside" in error["next_step"]
    exit_code, line = closing_line(cluster)
    assert exit_code == 1 and ": 1 error, " in line and "clean" not in line


@pytest.mark.fault("checkpoint-store-damaged")
def test_a_damaged_checkpoint_and_a_store_that_was_set_aside_are_named(
    cluster: StoredCluster, with_checkpoints: Path
) -> None:
    options = Options(raw_mode=True)
    db = Rdict(str(with_checkpoints), options)
    db[b"one"] = b"garbage"
    db.close()
    shutil.copytree(with_checkpoints, with_checkpoints.with_name("checkpoints.damaged"))
    code, findings = doctor(str(cluster.data))
    assert code == 1
    named = {one["place"]: one["severity"] for one in findings if "checkpoints" in one["place"]}
    assert named == {str(with_checkpoints): "error", str(with_checkpoints) + ".damaged": "hint"}
