"""The further data directories of a node, as its settings name them: CLASS:PATH, separated by commas."""

from __future__ import annotations

from typing import NamedTuple

_MOST = 64
_CLASS_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class DirectorySpec(NamedTuple):
    storage_class: str
    """What the disk under it is called: small letters, digits and hyphens."""
    path: str
    """Absolute, and normal: no `.`, no `..`, no slash at its end."""


def parse_directories(value: str) -> tuple[DirectorySpec, ...]:
    """In the order in which sealed copies move to them. Raises: ValueError, with the entry that is wrong."""
    found: list[DirectorySpec] = []
    for entry in filter(None, (part.strip() for part in value.split(","))):
        storage_class, colon, path = entry.partition(":")
        if not colon or not storage_class or not _CLASS_CHARACTERS.issuperset(storage_class):
            raise ValueError(f"expected CLASS:PATH, such as hdd:/data2, not {entry!r}")
        path = path.rstrip("/")
        if not path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")[1:]):
            raise ValueError(f"the directory of {entry!r} must be an absolute path below /, without . and ..")
        found.append(DirectorySpec(storage_class, path))
    for number, one in enumerate(found):
        for other in found[:number]:
            if f"{one.path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{one.path}/"):
                raise ValueError(f"{one.path} and {other.path} overlap: every directory needs a disk of its own")
    if len(found) > _MOST:
        raise ValueError(f"{len(found)} directories are named, at most {_MOST} are possible")
    return tuple(found)
