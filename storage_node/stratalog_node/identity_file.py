"""The owner of a data directory: node id, storage id, cluster id, in `node.json`; and a lock against a second process.

A new directory gets a new storage id, so that an emptied disk is never taken for the old one (rule 7). It belongs to
one cluster forever: with emptied metadata, or those of another cluster, the node would silently serve none of its data.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from stratalog.model.errors import Corrupt, InvalidRequest, Unavailable
from stratalog_node.disk.durable_files import read_file, write_durably, write_error


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: int
    storage_id: str
    cluster_id: str


def load_or_create(path: Path, node_id: int, cluster_id: str) -> NodeIdentity:
    """What the file says; a new one names these. One from before cluster ids were written down takes this one.

    Requires: `cluster_id` is durable in the metadata, for what is written here is held against it forever.
    Raises: Corrupt when the file says nothing useful, InvalidRequest when it belongs to another node or cluster,
    Unavailable and DiskFull when it cannot be read or written.
    """
    data = read_file(path)
    if data is None:
        identity = NodeIdentity(node_id, str(uuid.uuid4()), cluster_id)
        _make_directory(path.parent)
        _write(path, identity)
        return identity
    try:
        fields = json.loads(data)
        is_old = "cluster_id" not in fields
        cluster = cluster_id if is_old else str(fields["cluster_id"])
        identity = NodeIdentity(int(fields["node_id"]), str(fields["storage_id"]), cluster)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"not a node identity: {error}; restore it from another copy", source=str(path), position=0
        ) from error
    if identity.node_id != node_id:
        raise InvalidRequest(
            f"{path} belongs to node {identity.node_id}, this is node {node_id}: use its own --data DIR"
        )
    if identity.cluster_id != cluster_id:
        raise InvalidRequest(
            f"{path} belongs to cluster {identity.cluster_id}, the metadata store is cluster {cluster_id}'s: name "
            "the meta service of the first one, put its metadata back from a backup (DIR/meta of --data DIR), or start "
            "on an empty --data DIR"
        )
    if is_old:
        _write(path, identity)
    return identity


def _write(path: Path, identity: NodeIdentity) -> None:
    write_durably(path, [json.dumps(asdict(identity), indent=2).encode() + b"\n"])


def lock_directory(path: Path) -> int:
    """Take the directory for this process; the descriptor keeps it. Raises: Unavailable when another process has it, or
    it cannot be made; DiskFull."""
    _make_directory(path)
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise write_error(path / "lock", error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Unavailable(f"{path} is in use by another process; stop it first or use another --data DIR") from None
    return fd


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)  # as its files: records are in it
    except OSError as error:
        raise write_error(path, error) from error
