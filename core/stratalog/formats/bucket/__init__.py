"""Objects in the bucket and their names: parts, bundles, manifests, key indexes, claims, cuts, meta snapshots."""

__all__ = (
    "bundle",
    "claim",
    "cut",
    "key_index",
    "key_runs",
    "manifest",
    "meta_snapshot",
    "object_names",
    "packed_chunk",
    "part",
)
