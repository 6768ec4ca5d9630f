"""A retired node's directory, opened for reading alone: nothing in it is created, written, cut, renamed or locked.

So it may lie on a file system that is mounted read-only, or belong to another user. Blocking.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from stratalog.model.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from stratalog_node.disk.layout import NodeLayout
from stratalog_node.identity_file import NodeIdentity


def check_is_node(layout: NodeLayout) -> None:
    """Raises: NotFound if it is not a node's directory, Unavailable if it cannot be read."""
    _identity_bytes(layout.node_file)


def _identity_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{path} is not there: name the --data DIR of the node that was retired") from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}: let this user read it") from error


def node_id_of(layout: NodeLayout) -> int:
    """Whose directory it is, before anything answers for its cluster. Raises: as `read_identity`."""
    return _identity(layout.node_file, "").node_id


def read_identity(layout: NodeLayout, cluster_id: str) -> NodeIdentity:
    """The node that owns the directory. Raises: NotFound if it is not a node's directory, InvalidRequest for another
    cluster's, Corrupt."""
    path = layout.node_file
    identity = _identity(path, cluster_id)
    if identity.cluster_id != cluster_id:
        raise InvalidRequest(
            f"{path} belongs to cluster {identity.cluster_id}, the metadata are cluster {cluster_id}'s: name the meta "
            "service of the first one"
        )
    return identity


def _identity(path: Path, cluster_id: str) -> NodeIdentity:
    """`cluster_id`: where the file names none."""
    data = _identity_bytes(path)
    try:
        fields = json.loads(data)
        return NodeIdentity(
            int(fields["node_id"]), str(fields["storage_id"]), str(fields.get("cluster_id", cluster_id))
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"not a node identity: {error}; restore it from another copy", source=str(path), position=0
        ) from error


def share_lock(root: Path) -> int | None:
    """See that no node writes there, and keep others from it for as long as the descriptor is open. None where no node
    ever took the lock. Raises: Unavailable while one has it."""
    try:
        fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"{root / 'lock'} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Unavailable(f"{root} is in use by a node that writes there: stop it first") from None
    return fd
