"""What the checkpoint store leaves to the other threads of its process while the disk works."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from stratalog.model.ids import SegmentKey
from stratalog_node.disk.checkpoints import Checkpoints
from support.interpreter import lets_others_run


def test_a_revoked_checkpoint_leaves_the_interpreter_to_others_while_the_disk_works(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    try:
        assert lets_others_run(lambda: checkpoints.revoke([SegmentKey(UUID(int=1), 0, 0, 0)]))
    finally:
        checkpoints.close()
