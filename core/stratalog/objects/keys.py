"""Object keys: which strings may name an object.

One rule for every store, so that a key that works in a bucket works in a directory and the other way round, and none
reaches outside the store's place.
"""

from __future__ import annotations

import re

from stratalog.model.errors import InvalidRequest

MAX_KEY_BYTES = 900
"""S3 allows 1024; the store's own prefix needs room too."""
MAX_SEGMENT_BYTES = 200
"""File systems allow 255; temporary names need room too."""

_NAME = rf"[A-Za-z0-9_=@-][A-Za-z0-9._=@-]{{0,{MAX_SEGMENT_BYTES - 1}}}"
_SEGMENT = re.compile(_NAME)
_KEY = re.compile(rf"{_NAME}(?:/{_NAME})*")


def check_key(key: str) -> str:
    """Raises: InvalidRequest, naming what is wrong. Returns the key."""
    if len(key) <= MAX_KEY_BYTES and _KEY.fullmatch(key):
        return key
    if not key or len(key) > MAX_KEY_BYTES:
        raise InvalidRequest(f"object key {key!r}: must have 1 to {MAX_KEY_BYTES} characters")
    for segment in key.split("/"):
        if not is_segment(segment):
            raise InvalidRequest(
                f"object key {key!r}: segment {segment!r} is not 1 to {MAX_SEGMENT_BYTES} letters, digits or ._=@- "
                "that begin with no dot"
            )
    return key


def is_segment(name: str) -> bool:
    """Whether a name may stand between two slashes of a key."""
    return _SEGMENT.fullmatch(name) is not None


def check_prefix(prefix: str) -> str:
    """A prefix is empty, a key, or a key and a slash. Raises: InvalidRequest."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def folder_of(prefix: str) -> str:
    """The longest part of a prefix that names a folder: with its slash, or empty."""
    return prefix[: prefix.rfind("/") + 1]


def check_range(key: str, start: int, end: int) -> None:
    """Raises: InvalidRequest for an empty or backward range: S3 would answer it with the whole object or an error."""
    if not 0 <= start < end:
        raise InvalidRequest(f"{key}: range [{start}, {end}) is empty or negative; ask for at least one byte")
