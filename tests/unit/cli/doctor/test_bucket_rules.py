"""Which settings of a bucket endanger the data in it, which cost money, which do not matter."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.objects import BucketSettings, LifecycleRule, Move, Unknown, Versioning
from stratalog_cli.doctor.bucket_settings import findings_of, shown

TIDY = LifecycleRule("tidy", aborts_multipart=True, expires_old_versions=True)


def settings(*rules: LifecycleRule, prefix: str = "logs/", **changed: Any) -> BucketSettings:
    told: dict[str, Any] = {
        "lifecycle": (TIDY, *rules),
        "versioning": Versioning.OFF,
        "encryption": "AES256",
        "object_lock": "off",
    }
    return BucketSettings("s3://bucket/logs", prefix, **(told | changed))


def judged(bucket: BucketSettings) -> list[str]:
    return [finding.severity for finding in findings_of(bucket)]


def test_a_tidy_bucket_has_no_findings() -> None:
    assert judged(settings()) == []


@pytest.mark.parametrize("prefix", ["", "lo", "logs", "logs/", "logs/cluster/data/"])
def test_a_rule_that_deletes_our_objects_is_an_error_and_named(prefix: str) -> None:
    (finding,) = findings_of(settings(LifecycleRule("old-stuff", prefix=prefix, expires="after 30 days")))
    assert finding.severity == "error"
    assert "'old-stuff'" in finding.what and "after 30 days" in finding.what
    assert finding.place == "s3://bucket/logs"
    assert "remove the rule" in finding.next_step


@pytest.mark.fault("lifecycle-rule-moved-object")
@pytest.mark.parametrize(
    ("to_class", "severity", "words"),
    [
        ("GLACIER", "error", "must be restored before they are read"),
        ("DEEP_ARCHIVE", "error", "must be restored before they are read"),
        ("SOMETHING_NEW", "error", "is not known"),
        ("ONEZONE_IA", "warning", "lost with the one zone"),
        ("STANDARD_IA", "hint", "read at once"),
        ("GLACIER_IR", "hint", "read at once"),
        ("INTELLIGENT_TIERING", "hint", "read at once"),
    ],
)
def test_a_rule_that_moves_our_objects_is_judged_by_whether_they_are_read_there(
    to_class: str, severity: str, words: str
) -> None:
    """Each was an error: classes that are read at once cost more, and lose nothing."""
    (finding,) = findings_of(settings(LifecycleRule("cool", moves=(Move(to_class, "after 90 days"),))))
    assert finding.severity == severity
    assert "'cool'" in finding.what and f"to {to_class} after 90 days: " in finding.what and words in finding.what


@pytest.mark.parametrize(
    "rule",
    [
        LifecycleRule("elsewhere", prefix="photos/", expires="after 1 day"),
        LifecycleRule("neighbour", prefix="logs-of-others/", expires="after 1 day"),
        LifecycleRule("off", is_enabled=False, expires="after 1 day"),
        LifecycleRule("tagged", needs_tags=True, expires="after 1 day"),
        LifecycleRule("old versions", expires_old_versions=True),
    ],
    ids=lambda rule: rule.name,
)
def test_a_rule_that_leaves_our_objects_alone_is_no_finding(rule: LifecycleRule) -> None:
    assert judged(settings(rule)) == []


def test_a_bucket_without_a_prefix_is_wholly_ours() -> None:
    assert judged(settings(LifecycleRule("any", prefix="photos/", expires="after 1 day"), prefix="")) == ["error"]


@pytest.mark.parametrize(
    "rules",
    [
        (),
        (LifecycleRule("elsewhere", prefix="photos/", aborts_multipart=True),),
        (LifecycleRule("a part only", prefix="logs/cluster/", aborts_multipart=True),),
        (LifecycleRule("off", is_enabled=False, aborts_multipart=True),),
    ],
)
def test_incomplete_uploads_that_no_one_ends_are_a_hint(rules: tuple[LifecycleRule, ...]) -> None:
    (finding,) = findings_of(settings(lifecycle=rules))
    assert finding.severity == "hint"
    assert "AbortIncompleteMultipartUpload" in finding.next_step


def test_versioning_is_a_hint_unless_old_versions_go_by_themselves() -> None:
    keeps = LifecycleRule("keeps", aborts_multipart=True)
    (finding,) = findings_of(settings(lifecycle=(keeps,), versioning=Versioning.ON))
    assert finding.severity == "hint"
    assert "versioning is on" in finding.what
    assert judged(settings(versioning=Versioning.ON)) == []
    assert judged(settings(lifecycle=(keeps,), versioning=Versioning.SUSPENDED)) == []


def test_what_a_server_does_not_implement_is_unknown_and_no_finding() -> None:
    nothing = Unknown("the server does not implement it")
    bucket = settings(lifecycle=nothing, versioning=nothing, encryption=nothing, object_lock=nothing)
    assert judged(bucket) == []
    assert set(shown(bucket).values()) == {"unknown: the server does not implement it"}


def test_rules_that_are_hidden_from_these_credentials_are_a_warning() -> None:
    (finding,) = findings_of(settings(lifecycle=Unknown("may not ask", is_denied=True)))
    assert finding.severity == "warning"
    assert "s3:GetLifecycleConfiguration" in finding.next_step


def test_every_setting_is_shown_in_words() -> None:
    words = shown(settings(LifecycleRule("old", prefix="logs/", is_enabled=False, expires="after 3 days")))
    assert words == {
        "lifecycle rules": "'tidy': ends incomplete uploads, deletes old versions; "
        "'old' (prefix 'logs/'), disabled: deletes after 3 days",
        "versioning": "off",
        "default encryption": "AES256",
        "object lock": "off",
    }
