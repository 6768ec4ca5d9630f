"""What a bucket's settings mean for data that is to be kept in it: a pure function from settings to findings.

The rules: nobody but a node may delete what lies below the prefix, or move it to a class that must be restored before
it is read (an error). A class that is read at once, but loses data with its zone, is a warning, and any other such
class a hint: it costs more for each read. What costs money needlessly is a hint. What could not be learnt is no
finding, unless these credentials are what hides it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from stratalog.admin_api.models import Finding
from stratalog.objects import BucketSettings, LifecycleRule, Unknown, Versioning

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
    return {name: f"unknown: {told.why}" if isinstance(told, Unknown) else str(told) for name, told in named.items()}


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
    told = settings.lifecycle
    if isinstance(told, Unknown) and told.is_denied:
        what = f"whether lifecycle rules delete data is unknown: {told.why}"
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
