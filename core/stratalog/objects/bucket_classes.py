"""Asks an S3 server in which classes a bucket's objects are, and for restores of those that are archived, with boto3.

A listing says class and restore of a thousand objects at a time, so no object is asked for. Blocking; `restore` may be
called on several threads. Source: the S3 API reference, ListObjectsV2 (RestoreStatus) and RestoreObject.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from stratalog.model.errors import StratalogError, Unavailable
from stratalog.objects.bucket_control import answer_of, open_control, refusal_of_listing
from stratalog.objects.settings import StoreSettings
from stratalog.objects.urls import S3Location, parse_url
from stratalog.settings.choices import ArchiveClass

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from types_boto3_s3 import S3Client

ARCHIVE_CLASSES: Final = tuple(one.value for one in ArchiveClass)
"""Whose objects must be restored before they are read."""


class Restore(StrEnum):
    """Of an object in an archive class."""

    NONE = "archived"
    UNDER_WAY = "restoring"
    DONE = "restored"
    """There is a copy to be read, for a while."""


class RestoreTier(StrEnum):
    """How soon, and how dear."""

    BULK = "Bulk"
    STANDARD = "Standard"
    EXPEDITED = "Expedited"


@dataclass(frozen=True, slots=True)
class ClassedObject:
    key: str
    size_bytes: int
    storage_class: str
    restore: Restore = Restore.NONE

    @property
    def is_archived(self) -> bool:
        return self.storage_class in ARCHIVE_CLASSES


class BucketClasses:
    """Close it, or use it in a `with`."""

    def __init__(self, client: S3Client, location: S3Location) -> None:
        self._client = client
        self._location = location
        self._bucket = location.bucket
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self.url = location.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def list(self, prefix: str) -> Iterator[ClassedObject]:
        """Objects whose key starts with `prefix`; keys as the store has them. Raises: Unavailable."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix, OptionalObjectAttributes=["RestoreStatus"]
        )
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            for page in pages:
                for found in page.get("Contents", []):
                    key, size = str(found.get("Key", "")), int(found.get("Size", 0))
                    restore = _restore_of(found.get("RestoreStatus", {}))
                    yield ClassedObject(
                        key[len(self._prefix) :], size, str(found.get("StorageClass", "STANDARD")), restore
                    )
        except (ClientError, BotoCoreError) as error:
            refusal = refusal_of_listing(self._location, error)
            raise Unavailable(f"{self.url}: {refusal.what}: {refusal.next_step}") from error

    def restore(self, key: str, days: int, tier: RestoreTier) -> None:
        """Ask for a copy of an archived object that can be read for `days`. To ask again changes nothing while it is
        under way, and moves the end once it is done. Raises: StratalogError."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.restore_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                RestoreRequest={"Days": days, "GlacierJobParameters": {"Tier": tier.value}},
            )
        except ClientError as error:
            if answer_of(error)[1] != "RestoreAlreadyInProgress":
                raise StratalogError(f"{self.url}/{key}: no restore: {_answer(error)}") from error
        except BotoCoreError as error:
            raise Unavailable(f"{self.url}/{key}: whether a restore was asked for is not known: {error}") from error


def open_classes(
    url: str, settings: StoreSettings | None = None, environment: Mapping[str, str] | None = None
) -> BucketClasses | None:
    """None when the URL names no bucket of an S3 server: a directory has no classes. Raises: InvalidRequest."""
    environment = os.environ if environment is None else environment
    location = parse_url(url, environment)
    if not isinstance(location, S3Location):
        return None
    client = open_control(location, settings or StoreSettings(), environment)
    return BucketClasses(client, location)


def _restore_of(status: Mapping[str, Any]) -> Restore:
    """A server that does not say it leaves it at NONE: to ask for a restore twice is harmless."""
    if status.get("IsRestoreInProgress"):
        return Restore.UNDER_WAY
    return Restore.DONE if status.get("RestoreExpiryDate") else Restore.NONE


def _answer(error: ClientError) -> str:
    status, code = answer_of(error)
    hint = ": the credentials need s3:RestoreObject" if code == "AccessDenied" else ""
    return f"{status} {code}{hint}"
