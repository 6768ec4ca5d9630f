"""The bytes of files and objects: only these modules pack and unpack what is stored (docs/formats.md).

`bucket` has the objects in the bucket, `disk` the files of a node, `groups` the records of the group log. These use
`segments` (digest, index points, producers, seal) and `batches` (Kafka's batch v2 and its records).
`fields`, `envelope` and `identity` are the pieces that every structure shares.

Pure functions over bytes and views. A reader refuses anything malformed with `Corrupt(reason, source, position)`, and
checks a length field against the bytes that are there before it allocates.
"""
