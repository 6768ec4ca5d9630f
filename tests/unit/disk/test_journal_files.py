"""The shared write-ahead file: what was flushed is read back, in order; what was not is left out."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.formats.disk.journal import JOURNAL_HEADER_BYTES, JournalHeader
from stratalog.model.errors import DiskFull, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog_node.disk.journal_file import JournalFile, list_journals, read_journal, replay

KEYS = [SegmentKey(UUID(int=number), number, 0, 0) for number in range(3)]
GROUPS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.integers(0, 1 << 40), st.binary(max_size=100)), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=5,
)


def make(folder: Path, number: int = 1) -> JournalFile:
    return JournalFile(folder, JournalHeader("cluster", 1, number, 0))


def read(path: Path) -> list[tuple[SegmentKey, int, bytes]]:
    return [(entry.segment, entry.position, bytes(entry.payload)) for entry in read_journal(path)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=GROUPS, data=st.data())
def test_a_journal_cut_anywhere_gives_the_whole_entries_before_the_cut(
    tmp_path: Path, groups: list[list[tuple[SegmentKey, int, bytes]]], data: st.DataObject
) -> None:
    journal = make(tmp_path)
    ends, entries = [JOURNAL_HEADER_BYTES], []
    for group in groups:
        journal.write(group)
        for entry in group:
            entries.append(entry)
            ends.append(ends[-1] + 80 + len(entry[2]))
    journal.close()
    assert journal.size_bytes == ends[-1] == journal.path.stat().st_size
    assert read(journal.path) == entries
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(journal.path, cut)
    whole = sum(1 for end in ends[1:] if end <= cut) if cut >= JOURNAL_HEADER_BYTES else 0
    assert read(journal.path) == entries[:whole]


def test_an_entry_that_was_damaged_ends_the_replay(tmp_path: Path) -> None:
    journal = make(tmp_path)
    for number in range(3):
        journal.write([(KEYS[0], number, b"%d" % number * 50)])
    journal.close()
    content = bytearray(journal.path.read_bytes())
    content[JOURNAL_HEADER_BYTES + 130 + 100] ^= 1
    journal.path.write_bytes(content)
    assert read(journal.path) == [(KEYS[0], 0, b"0" * 50)]


def test_journals_are_replayed_in_the_order_of_their_numbers_and_foreign_files_are_left_alone(tmp_path: Path) -> None:
    for number in (10, 2, 100):
        journal = make(tmp_path, number)
        journal.write([(KEYS[0], number, b"x")])
        journal.close()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "copy.journal").write_text("mine")
    (tmp_path / "000000000101.journal").write_bytes(b"half a header")
    seen: list[int] = []
    assert replay(tmp_path, lambda entry: seen.append(entry.position)) == 3
    assert seen == [2, 10, 100]
    assert len(list_journals(tmp_path)) == 4
    assert list_journals(tmp_path / "none") == []


@pytest.mark.parametrize(("code", "kind"), [(28, DiskFull), (5, Unavailable)])
def test_a_write_that_fails_counts_for_nothing_and_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    journal = make(tmp_path)
    journal.write([(KEYS[0], 0, b"first")])

    def fail(_: int) -> None:
        raise OSError(code, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(kind, match="journal write failed"):
            journal.write([(KEYS[1], 0, b"lost" * 100)])
    journal.write([(KEYS[2], 0, b"second")])
    journal.close()
    assert read(journal.path) == [(KEYS[0], 0, b"first"), (KEYS[2], 0, b"second")]


def test_a_journal_that_cannot_be_made_says_so_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
    with pytest.raises(DiskFull):
        make(tmp_path)
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(read_journal(tmp_path / "000000000001.journal")) == []
