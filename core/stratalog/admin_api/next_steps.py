"""What to do about damage, in one wording: `verify` on a node and `doctor` beside it find the same things."""

from __future__ import annotations

from typing import Final

from stratalog.machines.restart.missing_copy import GIVE_BUCKET as GIVE_BUCKET

RESTORE_OBJECT: Final = (
    "keep the local copies of this segment; restore the object from a version or a replica of the bucket, or see with "
    "`stratalog doctor` on the bucket whether another attempt holds the range"
)
RESTORE_CLAIM: Final = (
    "restore the claim from an earlier version of the object; without one, make sure that no other process runs on the "
    "node's data, then delete it"
)
RESTORE_FILE: Final = (
    "stop the node, move the file aside, start it: reads then go to a complete remote copy or another replica; "
    "without one, restore a backup"
)
CHECK_STORE: Final = "check the object store, then run this again: what could not be read was not checked"
RESTORE_ARCHIVED: Final = (
    "restore the object (S3: `stratalog topics restore`); if a lifecycle rule moved it, remove the rule; it was not "
    "checked"
)
AWAIT_RESTORE: Final = "wait until the restore is done, then run this again: the object was not checked"
CHECK_VOLUME: Final = "check the volume, then run this again: what could not be read was not checked"
