"""From a URL to a store."""

from __future__ import annotations

from typing import assert_never

from stratalog.objects.directory import DirectoryStore
from stratalog.objects.obstore_store import open_azure, open_gcs, open_memory, open_s3
from stratalog.objects.settings import StoreSettings
from stratalog.objects.store import ObjectStore
from stratalog.objects.unpacking import UnpackingStore
from stratalog.objects.urls import AzureLocation, DirectoryLocation, GcsLocation, MemoryLocation, S3Location, parse_url


def open_store(url: str, settings: StoreSettings | None = None) -> ObjectStore:
    """The store a URL names (see `objects.urls`), which reads packed chunks as the parts they hold. Makes no request:
    the store may be away (F51); `probe` asks it.

    Raises: InvalidRequest for a URL that names none.
    """
    return UnpackingStore(_open(url, settings or StoreSettings()))


def _open(url: str, settings: StoreSettings) -> ObjectStore:
    location = parse_url(url)
    match location:
        case DirectoryLocation(path):
            return DirectoryStore(path, settings)
        case MemoryLocation():
            return open_memory(settings)
        case S3Location():
            return open_s3(location, settings)
        case GcsLocation():
            return open_gcs(location, settings)
        case AzureLocation():
            return open_azure(location, settings)
        case _:
            assert_never(location)
