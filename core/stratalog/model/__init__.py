"""Plain immutable data that all parts share, and the errors.

The records of the metadata: topics and shards in `topic`, segments with their seal records and remote parts in
`segment`, nodes and locks in `metadata`, retirements in `retirement`, mounts in `mounts`. `commands` change them,
`views` show them.
"""
