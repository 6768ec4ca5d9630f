"""Looks at an S3 bucket before its objects are looked at: is it there, may we use it, what is it set to do.

Changes one thing: an object below `probe/` is put and deleted, as a node does it before its first upload.
"""

from __future__ import annotations

import asyncio

from stratalog.model.errors import Rejected, StratalogError
from stratalog.objects import BucketRefusal, ObjectStore, read_bucket_settings
from stratalog_cli.doctor.bucket_rules import findings_of, shown
from stratalog_cli.doctor.examination import Examination


async def check_settings(url: str, store: ObjectStore, seen: Examination) -> bool:
    """Returns: whether the objects can be looked at. A directory has no settings. Raises: Unavailable when the server
    does not answer."""
    seen.step("the settings of the bucket")
    settings = await asyncio.to_thread(read_bucket_settings, url)
    if settings is None:
        return True
    if isinstance(settings, BucketRefusal):
        seen.error(settings.url, settings.what, settings.next_step)
        seen.why_unchecked = settings.what
        return False
    seen.settings = shown(settings)
    seen.findings += findings_of(settings)
    try:
        await store.probe()
    except StratalogError as error:
        if isinstance(error, Rejected):
            step = "use another store, or another version of the server: this one cannot be trusted with data"
        else:
            step = "check the server, and that the credentials have s3:PutObject, s3:GetObject and s3:DeleteObject"
        seen.error(settings.url, f"an object could not be put, read and deleted: {error}", step)
    else:
        seen.settings["put, read, delete"] = "work, and no put overwrites an object"
    return True
