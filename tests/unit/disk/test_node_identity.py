"""Who a data directory belongs to, and that only one process has it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from stratalog.model.errors import Corrupt, DiskFull, InvalidRequest, Unavailable
from stratalog_node.identity_file import NodeIdentity, load_or_create, lock_directory


@pytest.mark.fault("data-directory-used-node")
def test_a_directory_keeps_its_storage_id_and_an_emptied_one_gets_another(tmp_path: Path) -> None:
    path = tmp_path / "node" / "node.json"
    first = load_or_create(path, 3, "ours")
    assert load_or_create(path, 3, "ours") == first
    path.unlink()
    assert load_or_create(path, 3, "ours").storage_id != first.storage_id


@pytest.mark.fault("data-directory-used-node")
def test_a_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    load_or_create(tmp_path / "node.json", 3, "ours")
    with pytest.raises(InvalidRequest, match="belongs to node 3, this is node 4"):
        load_or_create(tmp_path / "node.json", 4, "ours")


def test_a_directory_of_another_cluster_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    load_or_create(path, 3, "ours")
    before = path.read_bytes()
    assert json.loads(before)["cluster_id"] == "ours"
    with pytest.raises(InvalidRequest, match=r"node\.json belongs to cluster ours, .* theirs.*from a backup"):
        load_or_create(path, 3, "theirs")
    assert path.read_bytes() == before


def test_a_directory_from_before_cluster_ids_takes_the_one_it_meets_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    path.write_text('{"node_id": 3, "storage_id": "disk"}')
    assert load_or_create(path, 3, "ours") == NodeIdentity(3, "disk", "ours")
    with pytest.raises(InvalidRequest, match="belongs to cluster ours"):
        load_or_create(path, 3, "theirs")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"node_id": 1}', b'{"node_id": "x", "storage_id": ""}', b"\xff\xfe"]
)
def test_a_damaged_identity_is_never_replaced_by_a_new_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=r"node\.json"):
        load_or_create(path, 1, "ours")
    assert path.read_bytes() == content


def test_a_directory_is_taken_by_one_process_at_a_time(tmp_path: Path) -> None:
    held = lock_directory(tmp_path / "node")
    with pytest.raises(Unavailable, match="in use by another process"):
        lock_directory(tmp_path / "node")
    os.close(held)
    os.close(lock_directory(tmp_path / "node"))


@pytest.mark.fault("data-directory-not-made")
def test_a_directory_that_cannot_be_made_or_locked_says_which_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match=r"file/node: cannot write: Not a directory"):
        lock_directory(tmp_path / "file" / "node")
    (tmp_path / "node" / "lock").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"node/lock: cannot write: Is a directory"):
        lock_directory(tmp_path / "node")


@pytest.mark.fault("data-directory-not-made")
@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_a_new_node_on_a_full_disk_is_told_that_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    def refuse(path: Path, *_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patches:
        patches.setattr(os, call, refuse)
        with pytest.raises(DiskFull, match=r"node.*: no space left"):
            lock_directory(tmp_path / "node")
    os.close(lock_directory(tmp_path / "node"))


@pytest.mark.fault("data-directory-not-made")
def test_an_identity_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "node.json").mkdir()
    with pytest.raises(Unavailable, match=r"node\.json: cannot read: Is a directory"):
        load_or_create(tmp_path / "node.json", 1, "ours")
    assert (tmp_path / "node.json").is_dir()


def test_other_users_of_the_machine_read_nothing_of_a_new_data_directory(tmp_path: Path) -> None:
    descriptor = lock_directory(tmp_path / "node-1")
    os.close(descriptor)
    assert (tmp_path / "node-1").stat().st_mode & 0o007 == 0
