"""Opens and closes the preamble and the envelope that every Stratalog structure begins with (docs/formats.md section
1).

Invariant: the CRC covers every other byte of the structure, so no bit of it can change unseen.
Checks run in a fixed order, and a claimed size is compared with the bytes given before it is used.
"""

from __future__ import annotations

import struct
from enum import Enum

from crc32c import crc32c

from stratalog.formats.fields import Buffer, FieldReader
from stratalog.model.errors import Corrupt

PREAMBLE_BYTES = 16
ENVELOPE_BYTES = 24

_CRC_AT = 12
_PREAMBLE = struct.Struct(">8sHHI")
_HEAD = struct.Struct(">8sHH")
_CRC = struct.Struct(">I")
_SIZE = struct.Struct(">q")


class Structure(Enum):
    """What can lie in a file or an object; the value is its magic."""

    SEGMENT = b"SLOGSEGM"
    INDEX_BLOCK = b"SLOGINDX"
    PART = b"SLOGPART"
    PART_INDEX = b"SLOGPIDX"
    BUNDLE = b"SLOGBNDL"
    BUNDLE_DIRECTORY = b"SLOGBDIR"
    BUNDLE_TRAILER = b"SLOGBEND"
    MANIFEST = b"SLOGMNFT"
    KEYED_MANIFEST = b"SLOGMKEY"
    PACKED_CHUNK = b"SLOGPACK"
    PACK_TABLE = b"SLOGPTAB"
    KEY_PAGE = b"SLOGKEYP"
    KEY_OVERFLOW = b"SLOGKEYO"
    CLAIM = b"SLOGCLAM"
    META_SNAPSHOT = b"SLOGMSNP"
    META_PIECE = b"SLOGMPCE"
    CUT = b"SLOGCUTV"
    CHECKPOINT = b"SLOGCKPT"
    JOURNAL = b"SLOGJRNL"
    JOURNAL_ENTRY = b"SLOGJENT"

    @property
    def version(self) -> int:
        """Of the layout that is written and read."""
        return _VERSIONS.get(self, 1)

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", " ")


_VERSIONS = {
    Structure.CHECKPOINT: 2,
    Structure.INDEX_BLOCK: 3,
    Structure.KEYED_MANIFEST: 3,
    Structure.MANIFEST: 4,
    Structure.PART: 2,
}
"""Of those whose layout has changed: the version that is usually written. The module of the structure has the
older versions that are still read, and those of variants: manifests with packed parts have 5, keyed ones 4
(`PACKED_VERSIONS` in `formats/bucket/manifest.py`). The next layout gets a number that none of them has."""


def identify(head: Buffer) -> Structure | None:
    """What a file or an object that begins with these bytes is; None if it is not one of Stratalog's."""
    try:
        return Structure(bytes(head[:8]))
    except ValueError:
        return None


def version_in(data: Buffer) -> int | None:
    """The version that a structure claims, unchecked; None where there is none."""
    view = memoryview(data)
    return None if len(view) < PREAMBLE_BYTES else int(_PREAMBLE.unpack_from(view)[1])


def seal_fixed(structure: Structure, body: bytes, *, version: int | None = None) -> bytes:
    """A structure of fixed size: preamble and body, which the caller padded."""
    head = _HEAD.pack(structure.value, structure.version if version is None else version, 0)
    return head + _CRC.pack(crc32c(body, crc32c(head))) + body


def seal_envelope(structure: Structure, body: bytes, *, version: int | None = None) -> bytes:
    """A structure of any size: preamble, body size, body. `version`: of a layout beside the usual one."""
    return seal_fixed(structure, _SIZE.pack(len(body)) + body, version=version)


def open_fixed(
    data: Buffer, structure: Structure, size: int, *, source: str, position: int, version: int | None = None
) -> FieldReader:
    """Check a structure of `size` bytes at the front of `data`; returns a reader of what follows the preamble.
    `version`: of a layout beside the usual one."""
    view = memoryview(data)
    _check_head(view, structure, size, source, position, version)
    view = view[:size]
    _check_crc(view, structure, source, position)
    return FieldReader(view[PREAMBLE_BYTES:], source=source, position=position + PREAMBLE_BYTES)


def open_envelope(
    data: Buffer, structure: Structure, *, source: str, position: int, version: int | None = None
) -> FieldReader:
    """Check an envelope that is all of `data`; returns a reader of its body. `version`: of a layout beside the usual
    one."""
    view = memoryview(data)
    _check_head(view, structure, ENVELOPE_BYTES, source, position, version)
    size: int = _SIZE.unpack_from(view, PREAMBLE_BYTES)[0]
    held = len(view) - ENVELOPE_BYTES
    if size != held:
        raise Corrupt(
            f"{structure.words} claims a body of {size} bytes, {held} are there",
            source=source,
            position=position + PREAMBLE_BYTES,
        )
    _check_crc(view, structure, source, position)
    return FieldReader(view[ENVELOPE_BYTES:], source=source, position=position + ENVELOPE_BYTES)


def _check_head(
    view: memoryview, structure: Structure, size: int, source: str, position: int, expected: int | None = None
) -> None:
    words, expected = structure.words, structure.version if expected is None else expected
    if len(view) < size:
        raise Corrupt(
            f"{words} is cut short: {len(view)} of at least {size} bytes", source=source, position=position + len(view)
        )
    magic, version, zero, _ = _PREAMBLE.unpack_from(view)
    if magic != structure.value:
        found = identify(magic)
        what = found.words if found else ("zeros" if not any(magic) else f"magic {magic.hex()}")
        raise Corrupt(f"no {words} here: found {what}", source=source, position=position)
    if version != expected:
        other = "a newer" if version > expected else "an older"
        raise Corrupt(
            f"{words} has version {version}, this reader knows {expected}: it is damaged, or {other} release wrote it",
            source=source,
            position=position + 8,
        )
    if zero:
        raise Corrupt(f"{words} has {zero} where zero belongs", source=source, position=position + 10)


def _check_crc(view: memoryview, structure: Structure, source: str, position: int) -> None:
    stored: int = _CRC.unpack_from(view, _CRC_AT)[0]
    computed = crc32c(view[PREAMBLE_BYTES:], crc32c(view[:_CRC_AT]))
    if stored != computed:
        raise Corrupt(
            f"{structure.words} has CRC {stored:08x}, its bytes have {computed:08x}",
            source=source,
            position=position + _CRC_AT,
        )
