"""The metadata as they are stored: records as keys and values, and snapshots of them in a bucket."""
