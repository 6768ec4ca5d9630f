"""Detects a store that is not the one with the cluster's data: a mistyped --bucket, a directory that is not mounted, an
emptied bucket. Uploads to it would split the log over two stores, and lost offsets would be given up although the right
store has them.
"""

from __future__ import annotations

from stratalog.formats.bucket.object_names import ObjectNames
from stratalog.objects.store import ObjectStore


async def has_nothing(store: ObjectStore, names: ObjectNames) -> bool:
    """Whether not one object of a node of the cluster is there: snapshots of the metadata come to a wrong store as soon
    as anything. Cost: one listing. Raises: what the store raises."""
    async for info in store.list(names.root):
        if not info.key.startswith(names.meta_prefix):
            return False
    return True


def words(store: ObjectStore, names: ObjectNames) -> str:
    """What is wrong with such a store, and the next step."""
    return (
        f"{store.url} holds nothing of cluster {names.cluster_id}, but metadata have data in an object store: start "
        "the node with the --bucket that holds it (is it mistyped, or a directory that is not mounted?). If that one "
        f"is lost permanently, continue with this one by putting any object below {names.data_prefix} there"
    )
