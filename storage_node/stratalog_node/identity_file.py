"""Who this data directory belongs to: node id, storage id, cluster id, in `node.json`; and a lock against a second
process.

A new directory gets a new storage id, so that an emptied disk is never taken for the old one (rule 7).
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from stratalog.model.errors import Corrupt, InvalidRequest, Unavailable
from stratalog_node.disk.files import read_file, write_durably


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: int
    storage_id: str


def load_or_create(path: Path, node_id: int) -> NodeIdentity:
    """Raises: Corrupt when the file says nothing useful, InvalidRequest when it belongs to another node."""
    data = read_file(path)
    if data is None:
        identity = NodeIdentity(node_id, str(uuid.uuid4()))
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"node_id": identity.node_id, "storage_id": identity.storage_id}, indent=2)
        write_durably(path, [text.encode() + b"\n"])
        return identity
    try:
        fields = json.loads(data)
        identity = NodeIdentity(int(fields["node_id"]), str(fields["storage_id"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"not a node identity: {error}; restore it from another copy", source=str(path), position=0
        ) from error
    if identity.node_id != node_id:
        raise InvalidRequest(
            f"{path} belongs to node {identity.node_id}, this is node {node_id}: use its own --data DIR"
        )
    return identity


def lock_directory(path: Path) -> int:
    """Take the directory for this process; the descriptor keeps it. Raises: Unavailable when another process has it."""
    path.mkdir(parents=True, exist_ok=True)
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Unavailable(f"{path} is in use by another process; stop it first or use another --data DIR") from None
    return fd
