"""Objects of the bucket are decoded in one room: `stratalog.stored.remote` checks that each is the one that was meant.

A second reader would have its own set of checks. So only that room and `formats` call the decoders.
"""

from __future__ import annotations

import ast

import pytest

from support.source_tree import SOURCE_ROOTS, python_files, relative

DECODERS = frozenset(
    {
        *("decode_manifest", "decode_claim"),
        *("decode_part_header", "decode_part_index", "check_part"),
        *("decode_bundle_header", "decode_bundle_trailer", "decode_bundle_directory", "check_bundle"),
        "decode_index_block",
    }
)
READERS = ("core/stratalog/formats/", "core/stratalog/stored/remote/")
EXCEPTIONS = {
    "cli/stratalog_cli/doctor/dump.py": "shows any file as it is, also one that is nowhere named",
    "cli/stratalog_cli/doctor/dump_sections.py": "shows any file as it is, also one that is nowhere named",
    "pipeline/stratalog_pipeline/jobs/repair/repair_sources.py": "index files of a node's disk",
    "storage_node/stratalog_node/admin/locate.py": "index files of the node's own disk",
    "storage_node/stratalog_node/check/local_segment.py": "index files of the node's own disk",
    "storage_node/stratalog_node/shards/copies/producer_tables.py": "index files of the node's own disk",
    "storage_node/stratalog_node/shards/copies/sealed.py": "index files of the node's own disk",
}
"""Each with what it decodes instead of an object that the metadata, a manifest or a name points to."""
OF_DISK = frozenset(path for path, reason in EXCEPTIONS.items() if reason.startswith("index files"))


def decoders_in(source: str) -> set[str]:
    """Decoders that a module imports or calls, under any name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(names=names):
                found |= {one.name for one in names} & DECODERS
            case ast.Attribute(attr=name) if name in DECODERS:
                found.add(name)
            case _:
                pass
    return found


def found_outside() -> dict[str, set[str]]:
    paths = [path for path in python_files(SOURCE_ROOTS) if not relative(path).startswith(READERS)]
    found = {relative(path): decoders_in(path.read_text("utf-8")) for path in paths}
    return {path: names for path, names in found.items() if names}


def test_one_room_decodes_the_objects_of_the_bucket() -> None:
    strangers = {path: sorted(names) for path, names in found_outside().items() if path not in EXCEPTIONS}
    assert not strangers, f"read them through stratalog.stored.remote: {strangers}"


def test_who_reads_index_files_of_a_disk_decodes_nothing_else() -> None:
    wrong = {path: sorted(found_outside()[path] - {"decode_index_block"}) for path in OF_DISK}
    assert not {path: names for path, names in wrong.items() if names}


def test_each_exception_is_still_one() -> None:
    assert EXCEPTIONS.keys() <= found_outside().keys()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from stratalog.formats.bucket.part import decode_part_header as header", {"decode_part_header"}),
        ("from stratalog.formats.bucket import manifest\nmanifest.decode_manifest(b'')", {"decode_manifest"}),
        ("def f():\n    from stratalog.formats.bucket.bundle import check_bundle", {"check_bundle"}),
        ("from stratalog.formats.bucket.manifest import Manifest, encode_manifest", set()),
    ],
)
def test_the_search_finds_every_way_to_a_decoder(source: str, found: set[str]) -> None:
    assert decoders_in(source) == found
