"""What S3 servers say of their buckets' settings, and what `stratalog doctor` makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from stratalog.model.errors import Unavailable
from stratalog.objects import (
    BucketRefusal,
    BucketSettings,
    LifecycleRule,
    Move,
    StoreSettings,
    Unknown,
    Versioning,
    read_bucket_settings,
)
from stratalog_cli.entry import build_app
from support.cluster_ports import free_port
from support.fault_proxy import Rule, ServerError, proxy_in_thread
from support.s3_servers import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    S3Server,
    control_client,
    make_bucket,
)

IMPATIENT = StoreSettings(attempt_timeout_ms=2_000, deadline_ms=4_000, attempts=2)


@pytest.fixture
def bucket(moto: S3Server) -> S3Server:
    """An empty bucket of its own."""
    made = S3Server(moto.port, f"bucket-{uuid4().hex[:12]}")
    make_bucket(made)
    return made


def settings_of(server: S3Server, prefix: str = "") -> BucketSettings:
    found = read_bucket_settings(server.url(prefix), IMPATIENT, {})
    assert isinstance(found, BucketSettings), found
    return found


def refusal_of(url: str) -> BucketRefusal:
    found = read_bucket_settings(url, IMPATIENT, {})
    assert isinstance(found, BucketRefusal), found
    return found


def set_rules(server: S3Server, *rules: dict[str, Any]) -> None:
    client = control_client(server)
    configuration: Any = {"Rules": [{"Status": "Enabled", **rule} for rule in rules]}
    client.put_bucket_lifecycle_configuration(Bucket=server.bucket, LifecycleConfiguration=configuration)
    client.close()


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", *arguments, "--output", "json"])
    assert ran.exit_code in (0, 1, 3), ran.output
    (seen,) = json.loads(ran.stdout)
    return ran.exit_code, seen


# What the server says -------------------------------------------------------------------------------------------------
def test_a_bucket_as_it_was_made_has_nothing_set(bucket: S3Server) -> None:
    assert settings_of(bucket, "some/where") == BucketSettings(
        f"s3://{bucket.bucket}/some/where", "some/where/", (), Versioning.OFF, "none", "off"
    )


def test_lifecycle_rules_are_read_in_all_their_shapes(bucket: S3Server) -> None:
    set_rules(
        bucket,
        {"ID": "old", "Filter": {"Prefix": "a/"}, "Expiration": {"Days": 30}},
        {"ID": "cool", "Filter": {}, "Transitions": [{"Days": 90, "StorageClass": "GLACIER"}]},
        {
            "ID": "tagged",
            "Filter": {"And": {"Prefix": "b/", "Tags": [{"Key": "k", "Value": "v"}]}},
            "Expiration": {"Days": 1},
            "Status": "Disabled",
        },
        {
            "ID": "tidy",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
        },
    )
    assert settings_of(bucket).lifecycle == (
        LifecycleRule("old", prefix="a/", expires="after 30 days"),
        LifecycleRule("cool", moves=(Move("GLACIER", "after 90 days"),)),
        LifecycleRule("tagged", is_enabled=False, prefix="b/", needs_tags=True, expires="after 1 day"),
        LifecycleRule("tidy", aborts_multipart=True, expires_old_versions=True),
    )


def test_the_default_encryption_is_read(bucket: S3Server) -> None:
    client = control_client(bucket)
    client.put_bucket_encryption(
        Bucket=bucket.bucket,
        ServerSideEncryptionConfiguration={
            "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-1"}}]
        },
    )
    client.close()
    assert settings_of(bucket).encryption == "aws:kms key-1"


def test_versioning_and_object_lock_are_read(moto: S3Server) -> None:
    locked = S3Server(moto.port, f"locked-{uuid4().hex[:12]}")
    make_bucket(locked, ObjectLockEnabledForBucket=True)
    assert settings_of(locked).object_lock == "on, without a default retention"
    client = control_client(locked)
    client.put_object_lock_configuration(
        Bucket=locked.bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}},
        },
    )
    client.put_bucket_versioning(Bucket=locked.bucket, VersioningConfiguration={"Status": "Enabled"})
    client.close()
    found = settings_of(locked)
    assert (found.versioning, found.object_lock) == (Versioning.ON, "on, GOVERNANCE for 3 days")


@pytest.mark.real_s3
def test_what_a_real_server_does_not_implement_is_unknown_and_no_failure(versitygw: S3Server) -> None:
    found = settings_of(versitygw)
    assert isinstance(found.lifecycle, Unknown)
    assert "does not implement" in found.lifecycle.why
    code, seen = doctor(versitygw.url(f"settings/{uuid4().hex}"))
    assert (code, seen["errors"]) == (0, 0)
    assert seen["settings"]["lifecycle rules"].startswith("unknown: the server does not implement")


@pytest.mark.parametrize(("status", "code", "is_denied"), [(501, "NotImplemented", False), (403, "AccessDenied", True)])
def test_a_setting_that_is_not_reported_is_unknown_and_says_why(
    bucket: S3Server, status: int, code: str, is_denied: bool
) -> None:
    with proxy_in_thread(bucket.port) as proxy:
        proxy.add(Rule(ServerError(status, code), target_contains="?lifecycle"))
        proxy.add(Rule(ServerError(405, "MethodNotAllowed"), target_contains="?encryption"))
        proxy.add(Rule(ServerError(503, "SlowDown"), target_contains="?object-lock"))
        found = settings_of(bucket.through(proxy.port))
    assert isinstance(found.lifecycle, Unknown)
    assert found.lifecycle.is_denied == is_denied
    assert isinstance(found.encryption, Unknown)
    assert isinstance(found.object_lock, Unknown)
    assert "503 SlowDown" in found.object_lock.why
    assert found.versioning is Versioning.OFF


# May it be used at all? -----------------------------------------------------------------------------------------------
def test_a_bucket_that_does_not_exist_is_refused_by_its_name(moto: S3Server) -> None:
    refusal = refusal_of(S3Server(moto.port, "nowhere").url())
    assert refusal.what.startswith("there is no bucket nowhere at http://127.0.0.1")
    assert "create it" in refusal.next_step


def test_without_credentials_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    assert refusal_of("s3://nowhere").what == "there are no credentials for this bucket"


def test_doctor_ends_with_3_where_a_bucket_could_not_be_checked(moto: S3Server) -> None:
    url = S3Server(moto.port, "nowhere").url()
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", url])
    told = CliRunner().invoke(build_app(("doctor",)), ["doctor", url, "--output", "json"])

    assert (ran.exit_code, told.exit_code) == (3, 3)
    assert ran.stdout.splitlines()[-1] == "s3://nowhere: not checked"
    assert "0 segments" not in ran.stdout
    (seen,) = json.loads(told.stdout)
    assert (seen["is_checked"], seen["errors"]) == (False, 1)


@pytest.mark.real_s3
def test_doctor_keeps_what_it_found_where_the_listing_is_refused(versitygw: S3Server) -> None:
    """The settings are read through a client that follows the server to its region; the objects are not."""
    url = versitygw.url().replace(f"region={REGION}", "region=eu-west-9")
    ran = CliRunner().invoke(build_app(("doctor",)), ["doctor", url, "--output", "json"])
    assert ran.exit_code == 3
    (seen,) = json.loads(ran.stdout)
    assert not seen["is_checked"] and seen["errors"] >= 1
    assert any("region" in one["next_step"] + one["what"] for one in seen["findings"])


@pytest.mark.real_s3
def test_wrong_credentials_are_refused_and_never_shown(versitygw: S3Server) -> None:
    refusal = refusal_of(versitygw.url().replace(SECRET_KEY, "wrong-secret"))
    assert "403 SignatureDoesNotMatch" in refusal.what
    assert "credentials" in refusal.next_step
    assert "wrong-secret" not in repr(refusal)


@pytest.mark.real_s3
def test_the_environment_gives_what_the_url_leaves_open_and_profiles_give_nothing(
    versitygw: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "of-another-account")
    monkeypatch.setenv("AWS_ENDPOINT_URL", versitygw.endpoint)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert isinstance(read_bucket_settings(f"s3://{versitygw.bucket}", IMPATIENT), BucketSettings)


def test_a_server_that_is_away_is_unavailable_after_a_few_attempts() -> None:
    with pytest.raises(Unavailable, match="is it up"):
        read_bucket_settings(S3Server(free_port(), "bucket").url(), IMPATIENT, {})


def test_https_at_a_port_that_speaks_http_says_so(moto: S3Server) -> None:
    url = moto.url().replace("http%3A", "https%3A")
    with pytest.raises(Unavailable, match="speaks plain HTTP there: endpoint=http://"):
        read_bucket_settings(url, IMPATIENT, {})


def test_a_place_that_is_not_a_bucket_has_no_settings() -> None:
    assert read_bucket_settings("file:///srv/bucket", IMPATIENT, {}) is None
    assert read_bucket_settings("memory:", IMPATIENT, {}) is None


def test_a_node_does_not_load_what_only_doctor_needs() -> None:
    code = "import sys, stratalog_node.node; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What doctor makes of it ----------------------------------------------------------------------------------------------
@pytest.mark.fault("bucket-lifecycle-rules-delete")
def test_doctor_names_the_rule_that_would_delete_data(bucket: S3Server) -> None:
    set_rules(bucket, {"ID": "thirty-days", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}})
    code, seen = doctor(bucket.url("logs"))
    assert code == 1
    (error,) = [finding for finding in seen["findings"] if finding["severity"] == "error"]
    assert "'thirty-days'" in error["what"]
    assert error["next_step"]
    assert "thirty-days" in seen["settings"]["lifecycle rules"]


def test_doctor_leaves_nothing_behind_in_a_good_bucket(bucket: S3Server) -> None:
    code, seen = doctor(bucket.url())
    assert (code, seen["errors"], seen["warnings"], seen["hints"]) == (0, 0, 0, 2), seen
    assert seen["settings"]["put, read, delete"].startswith("work")
    client = control_client(bucket)
    assert client.list_objects_v2(Bucket=bucket.bucket)["KeyCount"] == 0
    client.close()


@pytest.mark.fault("bucket-lifecycle-rules-delete")
@pytest.mark.parametrize("method", ["PUT", "GET", "POST"])
def test_doctor_reports_which_right_is_missing(bucket: S3Server, method: str) -> None:
    """Deletions go up as a POST of many keys."""
    with proxy_in_thread(bucket.port) as proxy:
        rule = proxy.add(Rule(ServerError(403, "AccessDenied"), methods={method}, when=_is_of_an_object))
        code, seen = doctor(bucket.through(proxy.port).url())
        assert rule.hits
    assert code == 1
    (error,) = [finding for finding in seen["findings"] if finding["severity"] == "error"]
    verb = {"PUT": "put", "GET": "get", "POST": "delete"}[method]
    assert f"{verb} s3://{bucket.bucket}/probe/" in error["what"]
    assert "s3:PutObject" in error["next_step"]


def _is_of_an_object(head: Any) -> bool:
    return "/probe/" in head.target or "?delete" in head.target


def test_doctor_goes_no_further_without_a_bucket(moto: S3Server) -> None:
    code, seen = doctor(S3Server(moto.port, "nowhere").url())
    assert code == 3
    (finding,) = seen["findings"]
    assert (finding["severity"], finding["place"]) == ("error", "s3://nowhere")


def test_a_table_shows_the_settings(bucket: S3Server) -> None:
    ran = CliRunner().invoke(build_app(("doctor", "verify")), ["doctor", bucket.url()])
    assert ran.exit_code == 0, ran.output
    for words in ("lifecycle rules", "versioning", "default encryption", "object lock", "hint: s3://"):
        assert words in ran.stdout
