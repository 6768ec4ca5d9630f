"""`stratalog dump` on every kind of file and object, whole and damaged."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from stratalog.formats.disk.journal import JournalHeader, encode_entry_header, encode_journal_header
from stratalog.formats.disk.segment_file import SEGMENT_HEADER_BYTES
from stratalog.model.ids import SegmentKey
from stratalog.model.producers import ProducerTally
from stratalog.model.segment import SealRecord, TimesKnown
from stratalog.objects.directory import DirectoryStore
from stratalog_cli.doctor.dump_sections import _seal
from stratalog_cli.entry import build_app
from stratalog_node.disk.inspection import InspectedFile
from support.stored_cluster import StoredCluster, store_cluster

APP = build_app()
SEAL = SealRecord(2, 40, 60, 1_000, 2_000, 321, b"\1" * 16, ProducerTally(5, b"\5" * 16, 6, 7), (1, 2), 3_000)
OTHER = SealRecord(
    3, 41, 61, 1_001, 2_001, 322, b"\2" * 16, ProducerTally(6, b"\6" * 16, 6, 7), (1, 3), 3_001, TimesKnown.ALL
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return store_cluster(tmp_path_factory.mktemp("stored"))


def dump(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    ran = CliRunner().invoke(APP, ["dump", *arguments, "--output", "json"])
    return ran.exit_code, [json.loads(line) for line in ran.stdout.splitlines()]


def kinds(sections: list[dict[str, object]]) -> list[object]:
    return [section["kind"] for section in sections]


def test_a_segment_file_shows_identity_and_batches(cluster: StoredCluster) -> None:
    code, sections = dump(str(cluster.segment_file(1)))

    assert code == 0
    assert kinds(sections) == ["file", "segment", *["batch"] * 4, "end"]
    assert sections[0]["holds"] == "segment"
    assert (sections[1]["topic"], sections[1]["epoch"], sections[1]["base_offset"]) == ("orders", 1, 30)
    assert (sections[2]["position"], sections[2]["from_offset"], sections[2]["records"]) == (
        SEGMENT_HEADER_BYTES,
        30,
        5,
    )
    assert (sections[-1]["batches"], sections[-1]["records"], sections[-1]["next_offset"]) == (4, 20, 50)


@pytest.mark.parametrize("name", [one.name for one in fields(SealRecord)])
def test_each_field_of_a_seal_record_is_shown(name: str) -> None:
    changed = replace(SEAL, **{name: getattr(OTHER, name)})
    assert changed != SEAL, "the two samples differ in every field"
    assert _seal(changed) != _seal(SEAL)


def test_room_ahead_of_a_segment_that_is_written_is_shown_as_such(cluster: StoredCluster, tmp_path: Path) -> None:
    path = tmp_path / "growing.seg"
    path.write_bytes(cluster.segment_file(1).read_bytes() + bytes(300_000))

    code, sections = dump(str(path))

    assert code == 0
    assert kinds(sections) == ["file", "segment", *["batch"] * 4, "room ahead", "end"]
    assert sections[-2]["bytes"] == 300_000


def test_a_node_that_fills_the_room_meanwhile_is_no_damage(
    cluster: StoredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cluster.segment_file(1).read_bytes()
    first_batch = 12 + int.from_bytes(whole[SEGMENT_HEADER_BYTES + 8 : SEGMENT_HEADER_BYTES + 12])
    path = tmp_path / "growing.seg"
    path.write_bytes(whole[: SEGMENT_HEADER_BYTES + first_batch] + bytes(len(whole)))
    real = InspectedFile.read

    def read(file: InspectedFile, position: int, size_bytes: int) -> bytes:
        data = real(file, position, size_bytes)
        if position >= SEGMENT_HEADER_BYTES:
            with path.open("r+b") as opened:
                opened.write(whole)
        return data

    monkeypatch.setattr(InspectedFile, "read", read)
    code, sections = dump(str(path))

    assert code == 0
    assert kinds(sections) == ["file", "segment", *["batch"] * 4, "room ahead", "end"]


def test_records_are_shown_when_asked_for(cluster: StoredCluster) -> None:
    code, sections = dump(str(cluster.segment_file(1)), "--records", "--from-offset", "45")

    assert code == 0
    assert kinds(sections) == ["file", "segment", "batch", *["record"] * 5, "end"]
    assert (sections[3]["offset"], sections[3]["key"]) == (45, "k45")


def test_the_number_of_batches_can_be_limited(cluster: StoredCluster) -> None:
    _, sections = dump(str(cluster.segment_file(0)), "--max-batches", "2")

    assert kinds(sections).count("batch") == 2


@pytest.mark.parametrize(
    ("name", "first", "inside"),
    [
        ("chunk", "part", {"batch"}),
        ("bundle0", "bundle", {"part", "batch"}),
        ("index", "segment", {"seal"}),
        ("manifest", "segment", {"seal", "index", "remote part"}),
    ],
)
def test_every_kind_of_object_can_be_shown(cluster: StoredCluster, name: str, first: str, inside: set[str]) -> None:
    from_file = dump(str(cluster.object(name)))
    from_store = dump(cluster.keys[name], "--bucket", str(cluster.bucket))

    code, sections = from_file
    assert code == 0
    assert kinds(sections)[:2] == ["file", first]
    assert inside <= set(kinds(sections))
    assert from_store[0] == 0 and from_store[1][1:] == sections[1:]


def test_a_journal_and_an_index_file_can_be_shown(cluster: StoredCluster) -> None:
    code, sections = dump(str(next(cluster.layout.journal.iterdir())))
    assert code == 0 and kinds(sections) == ["file", "journal", "end"]

    code, sections = dump(str(cluster.index_file(0)))
    assert code == 0 and "seal" in kinds(sections)


def test_what_was_read_before_the_damage_is_shown_then_the_damage(cluster: StoredCluster, tmp_path: Path) -> None:
    data = bytearray(cluster.segment_file(1).read_bytes())
    data[-1] ^= 1
    damaged = tmp_path / "damaged.seg"
    damaged.write_bytes(data)

    ran = CliRunner().invoke(APP, ["dump", str(damaged)])

    assert ran.exit_code == 1
    assert "batches" in ran.stdout and "45" in ran.stdout
    assert str(damaged) in ran.stderr and "CRC" in ran.stderr


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 100])
def test_what_is_not_ours_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)

    ran = CliRunner().invoke(APP, ["dump", str(path)])

    assert ran.exit_code == 1
    assert "not a file of Stratalog" in ran.stderr


def test_a_missing_file_and_a_directory_say_what_to_do(tmp_path: Path) -> None:
    missing = CliRunner().invoke(APP, ["dump", str(tmp_path / "no")])
    directory = CliRunner().invoke(APP, ["dump", str(tmp_path)])

    assert (missing.exit_code, directory.exit_code) == (2, 2)
    assert "no such file" in missing.stderr
    assert "stratalog doctor" in directory.stderr


def test_every_prefix_of_a_file_is_shown_or_refused_but_never_crashes(cluster: StoredCluster, tmp_path: Path) -> None:
    sources = [
        cluster.segment_file(1),
        cluster.index_file(0),
        *(cluster.object(n) for n in ("chunk", "bundle0", "manifest")),
    ]
    for source in sources:
        whole = source.read_bytes()
        for size in range(0, len(whole), 97):
            path = tmp_path / "cut"
            path.write_bytes(whole[:size])
            ran = CliRunner().invoke(APP, ["dump", str(path), "-o", "json"])
            assert ran.exit_code in (0, 1), f"{source.name} cut to {size} bytes: {ran.exception!r}"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each read of a file."""
    sizes: list[int] = []
    real = InspectedFile.read

    def read(file: InspectedFile, position: int, size_bytes: int) -> bytes:
        data = real(file, position, size_bytes)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(InspectedFile, "read", read)
    return sizes


@pytest.mark.fault("dump-sparse-20-gb")
@pytest.mark.parametrize(
    ("name", "code"),
    [("segment", 0), ("journal", 0), ("index", 1), ("chunk", 0), ("bundle0", 1), ("manifest", 1), ("nothing", 1)],
)
def test_a_sparse_file_of_20_gb_is_read_in_windows(
    cluster: StoredCluster, tmp_path: Path, reads: list[int], name: str, code: int
) -> None:
    path = tmp_path / "sparse"
    match name:
        case "segment":
            whole = cluster.segment_file(1).read_bytes()
        case "journal":
            whole = next(cluster.layout.journal.iterdir()).read_bytes()
        case "nothing":
            whole = b""
        case _:
            whole = cluster.object(name).read_bytes()
    path.write_bytes(whole)
    os.truncate(path, 20 << 30)

    ran = CliRunner().invoke(APP, ["dump", str(path)])

    assert ran.exit_code == code, ran.output
    assert max(reads) <= 4 << 20 and sum(reads) <= 32 << 20


@pytest.mark.fault("dump-sparse-20-gb")
def test_an_object_of_20_gb_is_read_in_ranges(cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cluster.keys["chunk"]
    path = cluster.object("chunk")
    size = path.stat().st_size
    asked: list[int] = []
    real = DirectoryStore.get_range

    async def get_range(store: DirectoryStore, key: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        return await real(store, key, start, end)

    monkeypatch.setattr(DirectoryStore, "get_range", get_range)
    try:
        os.truncate(path, 20 << 30)
        code, sections = dump(key, "--bucket", str(cluster.bucket))
    finally:
        os.truncate(path, size)
    assert code == 0 and kinds(sections)[:2] == ["file", "part"]
    assert max(asked) <= 4 << 20 and sum(asked) <= 32 << 20


@pytest.mark.fault("dump-sparse-20-gb")
def test_a_batch_that_claims_more_than_any_batch_has_is_refused_at_once(
    cluster: StoredCluster, tmp_path: Path, reads: list[int]
) -> None:
    data = bytearray(cluster.segment_file(1).read_bytes())
    data[SEGMENT_HEADER_BYTES + 8 : SEGMENT_HEADER_BYTES + 12] = b"\x7f\xff\xff\xff"
    path = tmp_path / "claims.seg"
    path.write_bytes(data)
    os.truncate(path, 20 << 30)

    ran = CliRunner().invoke(APP, ["dump", str(path)])

    assert ran.exit_code == 1 and "more than any batch may have" in ran.stderr
    assert sum(reads) <= 32 << 20


@pytest.mark.fault("dump-sparse-20-gb")
def test_a_journal_entry_longer_than_a_window_is_checked_in_windows(tmp_path: Path, reads: list[int]) -> None:
    payload = bytes(range(256)) * (9 << 12)
    key = SegmentKey(UUID(int=1), 0, 0, 0)
    header = encode_journal_header(JournalHeader("c", 1, 5, 0))
    entry = encode_entry_header(5, key, 7, [payload])
    path = tmp_path / "5.journal"
    path.write_bytes(header + entry + payload + entry + payload[:-1])

    code, sections = dump(str(path))

    assert code == 0 and kinds(sections) == ["file", "journal", "journal entry", "end"]
    assert (sections[2]["position"], sections[2]["bytes"]) == (7, len(payload))
    assert sections[3]["entries"] == 1 and f"{len(payload) - 1} are there" in str(sections[3]["why"])
    assert max(reads) <= 4 << 20
