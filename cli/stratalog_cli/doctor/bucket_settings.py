"""Checks a bucket before its objects are read: whether it exists, whether we may use it, and on S3 its settings.

It changes one thing: it puts and deletes an object below `probe/`, as a node does before its first upload.

Rules for the settings (`findings_of`, pure): only nodes may delete objects below the prefix or move them to a class
that must be restored before reading; another rule that does so is an error. A class that is readable at once but loses
data with its zone is a warning; any other readable class is a hint, because each read costs more. Settings that cost
money needlessly are hints. A setting that could not be read is a finding only if these credentials may not read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from stratalog.admin_api.models import Finding
from stratalog.model.errors import Rejected, StratalogError, Unavailable
from stratalog.objects import (
    BucketRefusal,
    BucketSettings,
    FailureKind,
    LifecycleRule,
    ObjectStore,
    Operation,
    Unknown,
    Versioning,
    read_bucket_settings,
)
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
    refusal = await _refusal_of(store)
    if refusal is not None:
        step = f"correct the URL, or check that the credentials {_RIGHTS[url.partition(':')[0]]}"
        seen.error(settings.url, f"the bucket cannot be listed: {refusal}", step)
        seen.why_unchecked = refusal
        return False
    seen.settings = shown(settings)
    seen.findings += findings_of(settings)
    try:
        await store.probe()
    except StratalogError as error:
        if isinstance(error, Rejected):
            step = "use another store, or another version of the server: this one cannot be trusted with data"
        else:
            step = f"check the server, and that the credentials {_RIGHTS[url.partition(':')[0]]}"
        seen.error(settings.url, f"an object could not be put, read and deleted: {error}", step)
    else:
        seen.settings["put, read, delete"] = "work, and no put overwrites an object"
    return True


async def _refusal_of(store: ObjectStore) -> str | None:
    """Why the store does not let us list it, if so. Raises: Unavailable when it does not answer."""
    try:
        async for _ in store.list(""):
            break
    except Unavailable as error:
        if FailureKind.DENIED not in store.stats[Operation.LIST].errors:
            raise
        return str(error)
    return None


_RIGHTS: Final[Mapping[str, str]] = {
    "s3": "have s3:PutObject, s3:GetObject and s3:DeleteObject",
    "gs": "may list, read, create and delete objects (the role Storage Object User)",
    "az": "may list, read, create and delete blobs (the role Storage Blob Data Contributor)",
}
Severity = Literal["error", "warning", "hint"]
_COSTS: Final = "they are read at once, and each read and each early deletion costs more"
_ZONE: Final = "they are read at once, and are lost with the one zone that has them"
_RESTORE: Final = "they must be restored before they are read, so reads fail"
_CLASSES: Final[Mapping[str, tuple[Severity, str]]] = {
    "STANDARD": ("hint", "they are read at once"),
    "STANDARD_IA": ("hint", _COSTS),
    "INTELLIGENT_TIERING": ("hint", "they are read at once, unless its archive tiers are turned on"),
    "GLACIER_IR": ("hint", _COSTS),
    "NEARLINE": ("hint", _COSTS),
    "COLDLINE": ("hint", _COSTS),
    "ONEZONE_IA": ("warning", _ZONE),
    "REDUCED_REDUNDANCY": ("warning", "they are read at once, and are lost more easily"),
    "GLACIER": ("error", _RESTORE),
    "DEEP_ARCHIVE": ("error", _RESTORE),
}
"""Storage classes: how bad it is that a rule moves objects there, and why."""
_OTHER: Final[tuple[Severity, str]] = ("error", "whether they can be read there at once is not known")
_IF_READ_SELDOM: Final = "keep it if this data is read seldom; remote.read.* and the pipeline read it as before"


def findings_of(settings: BucketSettings) -> list[Finding]:
    return [*_deletions(settings), *_waste(settings), *_hidden(settings)]


def shown(settings: BucketSettings) -> dict[str, str]:
    """Each setting in words."""
    lifecycle = settings.lifecycle
    if isinstance(lifecycle, Unknown):
        rules: str | Unknown = lifecycle
    else:
        rules = "; ".join(map(_in_words, lifecycle)) or "none"
    named: dict[str, str | Unknown] = {
        "lifecycle rules": rules,
        "versioning": settings.versioning,
        "default encryption": settings.encryption,
        "object lock": settings.object_lock,
    }
    return {
        name: f"unknown: {setting.why}" if isinstance(setting, Unknown) else str(setting)
        for name, setting in named.items()
    }


def _deletions(settings: BucketSettings) -> Iterator[Finding]:
    ours = f"objects below {settings.prefix}" if settings.prefix else "objects of this bucket"
    for rule in _rules_for(settings):
        if rule.expires is not None:
            what = f"lifecycle rule {_named(rule)} deletes {ours} {rule.expires}: data would go behind Stratalog's back"
            step = f"remove the rule, or keep it off {settings.url}; use retention.ms and retention.bytes instead"
            yield Finding(severity="error", place=settings.url, what=what, next_step=step)
        for move in rule.moves:
            what = f"lifecycle rule {_named(rule)} moves {ours} {move}: {_CLASSES.get(move.to_class, _OTHER)[1]}"
            severity = _CLASSES.get(move.to_class, _OTHER)[0]
            step = f"remove the rule, or keep it off {settings.url}" if severity != "hint" else _IF_READ_SELDOM
            yield Finding(severity=severity, place=settings.url, what=what, next_step=step)


def _waste(settings: BucketSettings) -> Iterator[Finding]:
    if isinstance(settings.lifecycle, Unknown):
        return
    whole = [rule for rule in _rules_for(settings) if settings.prefix.startswith(rule.prefix)]
    if not any(rule.aborts_multipart for rule in whole):
        what = "no lifecycle rule ends incomplete multipart uploads: they stay there unseen, and cost money"
        step = "add a rule with AbortIncompleteMultipartUpload, such as after 7 days"
        yield Finding(severity="hint", place=settings.url, what=what, next_step=step)
    if settings.versioning is Versioning.ON and not any(rule.expires_old_versions for rule in whole):
        what = "versioning is on: what Stratalog deletes stays as an old version, and costs money"
        step = "turn versioning off, or add a rule with NoncurrentVersionExpiration, such as after 7 days"
        yield Finding(severity="hint", place=settings.url, what=what, next_step=step)


def _hidden(settings: BucketSettings) -> Iterator[Finding]:
    lifecycle = settings.lifecycle
    if isinstance(lifecycle, Unknown) and not lifecycle.is_asked:
        what = "the rules of this store are not read: whether one deletes or archives objects is not known"
        step = f"check that no rule deletes objects below {settings.url}, or moves them where they must be restored"
        yield Finding(severity="hint", place=settings.url, what=what, next_step=step)
    if isinstance(lifecycle, Unknown) and lifecycle.is_denied:
        what = f"whether lifecycle rules delete data is unknown: {lifecycle.why}"
        step = "give these credentials s3:GetLifecycleConfiguration and run this again, or check the rules yourself"
        yield Finding(severity="warning", place=settings.url, what=what, next_step=step)


def _rules_for(settings: BucketSettings) -> list[LifecycleRule]:
    """The rules that act on our objects. These have no tags, so a rule that asks for tags leaves them alone."""
    if isinstance(settings.lifecycle, Unknown):
        return []
    return [
        rule
        for rule in settings.lifecycle
        if rule.is_enabled
        and not rule.needs_tags
        and (rule.prefix.startswith(settings.prefix) or settings.prefix.startswith(rule.prefix))
    ]


def _named(rule: LifecycleRule) -> str:
    return f"{rule.name!r} (prefix {rule.prefix!r})" if rule.prefix else f"{rule.name!r}"


def _in_words(rule: LifecycleRule) -> str:
    does = [f"deletes {rule.expires}"] if rule.expires is not None else []
    does += [f"moves {move}" for move in rule.moves]
    does += ["ends incomplete uploads"] if rule.aborts_multipart else []
    does += ["deletes old versions"] if rule.expires_old_versions else []
    state = "" if rule.is_enabled else ", disabled"
    tags = ", tagged objects only" if rule.needs_tags else ""
    return f"{_named(rule)}{state}{tags}: {', '.join(does) or 'nothing that matters here'}"
