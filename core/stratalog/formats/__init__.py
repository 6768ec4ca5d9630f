"""The bytes of files and objects: the one place that packs and unpacks what is stored (docs/formats.md).

Which structure is where: `record_batch` and `records` (Kafka's batch v2 and what is in it), `offered_batch` (one as a
client sent it), `segment_file`, `index_block`, `part`, `bundle`, `manifest`, `claim`, `checkpoint`, `journal`,
`group_log`, `object_names`, `digest`. Below them: `fields`, `envelope`, `identity`, `seal`, `producers`,
`index_points`, `compression`.

Pure functions over bytes and views. A reader refuses anything malformed with `Corrupt(reason, source, position)` and
allocates nothing on the word of a length field.
"""
