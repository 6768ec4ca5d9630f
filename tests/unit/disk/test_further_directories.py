"""Whose a further data directory is, and when one counts as absent."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.model.data_directories import DirectorySpec
from stratalog.model.errors import Corrupt, InvalidRequest
from stratalog_node.disk.further_directories import (
    IDENTITY_FILE,
    OpenedDirectory,
    check_directory,
    close_directories,
    open_directories,
)
from stratalog_node.disk.layout import NodeLayout
from support.further_disks import MARK, open_further


class Disks:
    """The directories of one node."""

    def __init__(self, root: Path) -> None:
        self.layout = NodeLayout(root / "data" / "node")
        self.layout.root.mkdir(parents=True)
        self.a, self.b = root / "a", root / "b"
        self.a.mkdir()
        self.b.mkdir()

    def start(self, *roots: Path) -> list[OpenedDirectory]:
        close_directories(self.layout)
        return open_further(self.layout, *roots)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    yield made
    close_directories(made.layout)


def _id(root: Path) -> str:
    return str(json.loads((root / IDENTITY_FILE).read_bytes())["directory_id"])


def test_a_new_directory_gets_an_identity_that_stays(disks: Disks) -> None:
    disks.start(disks.a)
    first = _id(disks.a)
    (opened,) = disks.start(disks.a)
    assert (opened.directory.directory_id, opened.directory.trouble) == (first, None)
    assert disks.layout.roots == [disks.layout.root, disks.a]


@pytest.mark.fault("data-directory-absent")
def test_an_empty_mount_point_is_absent_and_stays_empty(disks: Disks) -> None:
    disks.start(disks.a)
    shutil.rmtree(disks.a)
    disks.a.mkdir()
    (opened,) = disks.start(disks.a)
    assert opened.directory.is_absent and "mount the disk" in (opened.directory.trouble or "")
    assert list(disks.a.iterdir()) == [] and disks.layout.roots == [disks.layout.root]
    assert disks.layout.absent == [opened.directory]


@pytest.mark.fault("data-directory-absent")
def test_a_directory_that_is_back_is_used_again(disks: Disks) -> None:
    disks.start(disks.a)
    disks.a.rename(disks.a.with_name("unplugged"))
    (opened,) = disks.start(disks.a)
    assert opened.directory.is_absent
    disks.a.with_name("unplugged").rename(disks.a)
    (opened,) = disks.start(disks.a)
    assert opened.directory.trouble is None


@pytest.mark.fault("data-directory-absent")
def test_a_directory_that_does_not_answer_is_absent(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    disks.start(disks.a)
    close_directories(disks.layout)
    hang = threading.Event()
    monkeypatch.setattr("stratalog_node.disk.further_directories.scan_directory", lambda root: hang.wait() and {})
    (opened,) = open_directories(disks.layout, [DirectorySpec("hdd", str(disks.a))], MARK, patience_s=0.05)
    hang.set()
    assert opened.directory.is_absent and "did not answer" in (opened.directory.trouble or "")


@pytest.mark.fault("data-directory-foreign")
@pytest.mark.parametrize(
    "other", [MARK._replace(node_id=2), MARK._replace(storage_id="disk-2"), MARK._replace(cluster_id="theirs")]
)
def test_a_directory_of_another_node_is_refused(disks: Disks, tmp_path: Path, other: object) -> None:
    foreign = NodeLayout(tmp_path / "other")
    foreign.root.mkdir()
    open_further(foreign, disks.a, mark=other)  # type: ignore[arg-type]
    close_directories(foreign)
    before = (disks.a / IDENTITY_FILE).read_bytes()
    with pytest.raises(InvalidRequest, match="belongs to node"):
        disks.start(disks.a)
    assert (disks.a / IDENTITY_FILE).read_bytes() == before


@pytest.mark.fault("data-directory-foreign")
def test_a_directory_with_data_and_no_identity_is_refused(disks: Disks) -> None:
    (disks.a / "segments").mkdir()
    with pytest.raises(InvalidRequest, match="name an empty directory"):
        disks.start(disks.a)


@pytest.mark.fault("data-directory-foreign")
def test_a_copy_of_a_directory_beside_it_is_refused(disks: Disks) -> None:
    disks.start(disks.a)
    shutil.rmtree(disks.b)
    shutil.copytree(disks.a, disks.b)
    with pytest.raises(InvalidRequest, match="is a copy of"):
        disks.start(disks.a, disks.b)


@pytest.mark.fault("data-directory-foreign")
def test_a_directory_that_another_process_uses_is_refused(disks: Disks, tmp_path: Path) -> None:
    disks.start(disks.a)
    copied = NodeLayout(tmp_path / "copied")
    shutil.copytree(disks.layout.root, copied.root)
    with pytest.raises(InvalidRequest, match="in use by another process"):
        open_further(copied, disks.a)


def test_disks_that_changed_places_keep_their_copies(disks: Disks, tmp_path: Path) -> None:
    disks.start(disks.a, disks.b)
    first, second = _id(disks.a), _id(disks.b)
    disks.a.rename(tmp_path / "held")
    disks.b.rename(disks.a)
    (tmp_path / "held").rename(disks.b)
    opened = disks.start(disks.a, disks.b)
    assert [one.directory.directory_id for one in opened] == [second, first]
    assert disks.layout.absent == []


@pytest.mark.fault("data-directory-absent")
def test_a_disk_whose_place_another_took_is_absent(disks: Disks, tmp_path: Path) -> None:
    disks.start(disks.a, disks.b)
    disks.a.rename(tmp_path / "held")
    disks.b.rename(disks.a)
    disks.b.mkdir()
    disks.start(disks.a, disks.b)
    (absent,) = disks.layout.absent
    assert absent.root == disks.a and "another directory is mounted there" in (absent.trouble or "")
    close_directories(disks.layout)
    disks.layout.further.clear()
    disks.start(disks.a, disks.b)
    assert [one.root for one in disks.layout.absent] == [disks.a], "it is not forgotten by the next start"


def test_what_is_not_in_the_settings_any_more_is_not_waited_for(disks: Disks) -> None:
    disks.start(disks.a, disks.b)
    assert [one.directory.root for one in disks.start(disks.b)] == [disks.b]
    assert disks.layout.absent == []
    (opened, _) = disks.start(disks.a, disks.b)
    assert opened.directory.trouble is None


@pytest.mark.fault("data-directory-foreign")
def test_a_directory_that_has_the_first_one_in_it_is_refused(disks: Disks) -> None:
    with pytest.raises(InvalidRequest, match="lie in each other"):
        disks.start(disks.layout.root.parent)


def test_a_damaged_list_of_directories_stops_the_start(disks: Disks) -> None:
    disks.layout.directories_file.write_text("{")
    with pytest.raises(Corrupt, match="restore it from a backup"):
        disks.start(disks.a)


@pytest.mark.fault("data-directory-failed")
def test_a_directory_that_was_unmounted_is_noticed(disks: Disks) -> None:
    (opened,) = disks.start(disks.a)
    check_directory(opened.directory)
    (disks.a / IDENTITY_FILE).unlink()
    with pytest.raises(Exception, match="cannot be read"):
        check_directory(opened.directory)
