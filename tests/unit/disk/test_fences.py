"""`fences.json`: what was promised outlives every crash, and an unreadable list does not count as empty."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from stratalog.model.errors import Corrupt, Unavailable
from stratalog.model.ids import SegmentKey
from stratalog_node.disk import fences
from stratalog_node.disk.fences import FenceBook

KEY = SegmentKey(uuid.UUID(int=1), 3, 5, 700)
OTHER = SegmentKey(uuid.UUID(int=2), 0, 0, 0)


def test_a_promise_is_found_by_the_next_life(tmp_path: Path) -> None:
    path = tmp_path / "fences.json"
    book = FenceBook(path)
    assert book.promised(KEY) == 0
    book.promise({KEY: 6})
    book.promise({OTHER: 1})
    assert (FenceBook(path).promised(KEY), FenceBook(path).promised(OTHER)) == (6, 1)


def test_a_lower_promise_takes_nothing_back(tmp_path: Path) -> None:
    book = FenceBook(tmp_path / "fences.json")
    book.promise({KEY: 6})
    book.promise({KEY: 2})
    assert FenceBook(tmp_path / "fences.json").promised(KEY) == 6


def test_what_is_sealed_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    book = FenceBook(tmp_path / "fences.json")
    book.promise({KEY: 6})
    book.promise({OTHER: 1})
    book.forget([KEY])
    book.forget([KEY])
    assert (FenceBook(tmp_path / "fences.json").promised(KEY), book.promised(OTHER)) == (0, 1)


def test_a_promise_that_could_not_be_written_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = FenceBook(tmp_path / "fences.json")

    def fail(*_: object) -> None:
        raise Unavailable("no space left")

    monkeypatch.setattr(fences, "write_durably", fail)
    with pytest.raises(Unavailable):
        book.promise({KEY: 6})
    assert book.promised(KEY) == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"fences": [[1]]}', '{"fences": [["x", 0, 0, 0, 1]]}'])
def test_a_list_that_says_nothing_useful_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fences.json"
    path.write_text(text)
    with pytest.raises(Corrupt, match="no list of fences"):
        FenceBook(path)
