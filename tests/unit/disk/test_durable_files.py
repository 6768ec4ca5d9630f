"""Small files that are written whole, by several writers at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stratalog_node.disk.durable_files import write_durably

TIMES = 100


@pytest.mark.fault("two-threads-write-index")
def test_of_two_that_write_a_file_at_once_it_holds_what_one_of_them_wrote(tmp_path: Path) -> None:
    """An index block by the seal of who led the segment, and by the proof of its copy a moment later: each wrote into
    the half-written file of the other, or found it gone."""
    path = tmp_path / "f"
    failures: list[Exception] = []
    contents = [letter * size for letter, size in ((b"a", 300_000), (b"b", 200_000))]
    together = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        for _ in range(TIMES):
            together.wait()
            try:
                write_durably(path, [content[:1000], content[1000:]])
            except Exception as error:
                failures.append(error)
            if path.read_bytes() not in contents:
                failures.append(AssertionError("neither"))

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]
