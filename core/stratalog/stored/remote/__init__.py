"""The one reader of remote copies: decodes an object of the bucket and checks that it is the object that was meant.

Each function compares all that an object says about itself (cluster, topic, shard, segment, offsets, size, attempt,
digest, seal) with what the metadata, the manifest or the object's name say. No other code decodes these objects.
"""

__all__ = ("bundles", "claims", "expected", "indexes", "manifests", "parts")
