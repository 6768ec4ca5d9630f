"""What an S3 bucket is set to do with its objects, as far as its server says: plain data, without a client. A setting
that could not be read is `Unknown`: a server that lacks a call does not make the bucket wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Unknown:
    why: str
    is_denied: bool = False
    """The server knows and may not tell these credentials."""
    is_asked: bool = True
    """False: Stratalog does not know how to ask this kind of store."""


@dataclass(frozen=True, slots=True)
class Move:
    """Of objects to another storage class."""

    to_class: str
    when: str
    """In words: `after 30 days`."""

    def __str__(self) -> str:
        return f"to {self.to_class} {self.when}"


@dataclass(frozen=True, slots=True)
class LifecycleRule:
    name: str
    is_enabled: bool = True
    prefix: str = ""
    """Of the keys that it applies to, from the bucket's root."""
    needs_tags: bool = False
    """It applies to objects with certain tags only."""
    expires: str | None = None
    """When it deletes objects, in words: `after 30 days`."""
    moves: tuple[Move, ...] = ()
    aborts_multipart: bool = False
    expires_old_versions: bool = False


class Versioning(StrEnum):
    OFF = "off"
    ON = "on"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class BucketSettings:
    url: str
    prefix: str
    """What all our keys begin with: empty, or ends with a slash."""
    lifecycle: tuple[LifecycleRule, ...] | Unknown
    versioning: Versioning | Unknown
    encryption: str | Unknown
    """`none`, or the algorithm, in words."""
    object_lock: str | Unknown
    """`off`, or `on` with the default retention, in words."""


@dataclass(frozen=True, slots=True)
class BucketRefusal:
    """The bucket is not there, or not for these credentials."""

    url: str
    what: str
    next_step: str
