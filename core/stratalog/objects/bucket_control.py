"""Asks an S3 server about a bucket's settings, with boto3: obstore moves objects and knows nothing of buckets.

Endpoint, region and credentials come from where the data's client takes them: the URL, then the AWS_* environment,
never from the files of another tool. boto3 is imported when it is used: no node pays for it.
Blocking. Each call has a timeout and few attempts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stratalog.model.counting import counted
from stratalog.model.errors import Unavailable
from stratalog.objects.bucket_settings import BucketRefusal, BucketSettings, LifecycleRule, Move, Unknown, Versioning
from stratalog.objects.settings import StoreSettings
from stratalog.objects.urls import AzureLocation, GcsLocation, S3Location, parse_url

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import LifecycleRuleOutputTypeDef

T = TypeVar("T")

_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REGION = "us-east-1"
_NOT_IMPLEMENTED = (405, 501)
_DENIED = (401, 403)


def read_bucket_settings(
    url: str, settings: StoreSettings | None = None, environment: Mapping[str, str] | None = None
) -> BucketSettings | BucketRefusal | None:
    """None when the URL names no bucket; only S3 is asked. Raises: InvalidRequest; Unavailable when the server does not
    answer."""
    environment = os.environ if environment is None else environment
    location = parse_url(url, environment)
    if isinstance(location, (GcsLocation, AzureLocation)):
        unread = Unknown("only S3 is asked", is_asked=False)
        return BucketSettings(
            location.url, f"{location.prefix}/" if location.prefix else "", unread, unread, unread, unread
        )
    if not isinstance(location, S3Location):
        return None
    client = open_control(location, settings or StoreSettings(), environment)
    prefix = f"{location.prefix}/" if location.prefix else ""
    try:
        refusal = _refusal(client, location, prefix)
        if refusal is not None:
            return refusal
        return BucketSettings(
            url=location.url,
            prefix=prefix,
            lifecycle=_ask(lambda: _lifecycle(client, location.bucket), (), "NoSuchLifecycleConfiguration"),
            versioning=_ask(lambda: _versioning(client, location.bucket), Versioning.OFF),
            encryption=_ask(
                lambda: _encryption(client, location.bucket), "none", "ServerSideEncryptionConfigurationNotFoundError"
            ),
            object_lock=_ask(
                lambda: _object_lock(client, location.bucket), "off", "ObjectLockConfigurationNotFoundError"
            ),
        )
    finally:
        client.close()


def open_control(location: S3Location, settings: StoreSettings, environment: Mapping[str, str]) -> S3Client:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.session import Session

    given = {name: str(value) for name, value in location.config.items()}
    region = given.get("region") or next((environment[n] for n in _REGION_VARIABLES if environment.get(n)), _REGION)

    def is_on(name: str) -> bool:
        return (given.get(name) or environment.get(f"AWS_{name.upper()}", "")).lower() == "true"

    config = Config(
        connect_timeout=min(5.0, settings.attempt_timeout_ms / 1_000),
        read_timeout=settings.attempt_timeout_ms / 1_000,
        retries={"total_max_attempts": settings.attempts, "mode": "standard"},
        s3={"addressing_style": "virtual" if is_on("virtual_hosted_style_request") else "path"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": UNSIGNED} if is_on("skip_signature") else {}),
    )
    # The data's client reads no profile: with one the answers here could be those of another account.
    nowhere: dict[str, Any] = {
        "profile": (None, None, None, None),
        "config_file": (None, None, os.devnull, None),
        "credentials_file": (None, None, os.devnull, None),
    }
    return boto3.Session(botocore_session=Session(session_vars=nowhere)).client(
        "s3",
        endpoint_url=given.get("endpoint") or None,
        region_name=region,
        aws_access_key_id=given.get("access_key_id"),
        aws_secret_access_key=given.get("secret_access_key"),
        aws_session_token=given.get("session_token"),
        config=config,
    )


def _refusal(client: S3Client, location: S3Location, prefix: str) -> BucketRefusal | None:
    """Why nothing can be done with the bucket, if so: it is listed, as a node does it."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.list_objects_v2(Bucket=location.bucket, Prefix=prefix, MaxKeys=1)
    except (ClientError, BotoCoreError) as error:
        return refusal_of_listing(location, error)
    return None


def refusal_of_listing(location: S3Location, error: Exception) -> BucketRefusal:
    """Why the bucket could not be listed, and what to do. Raises: Unavailable when that may pass by itself."""
    from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

    where = location.config.get("endpoint") or "AWS"
    if isinstance(error, ClientError):
        status, code = answer_of(error)
        if code == "NoSuchBucket" or status == 404:
            what = f"there is no bucket {location.bucket} at {where}"
            return BucketRefusal(location.url, what, "create it, or correct the URL's bucket, endpoint or region")
        if status in _DENIED:
            what = f"these credentials may not list the bucket: {where} answered {status} {code}"
            step = "check the credentials, and that the bucket's policy gives them s3:ListBucket"
            return BucketRefusal(location.url, what, step)
        if status in (301, 307, 400):
            what = f"the bucket cannot be listed: {where} answered {status} {code}"
            return BucketRefusal(location.url, what, "correct the URL's region, endpoint or credentials")
        raise Unavailable(f"{location.url}: {where} answered {status} {code} to a listing; try later") from error
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        is_none = isinstance(error, NoCredentialsError)
        what = "there are no credentials for this bucket" if is_none else f"the credentials are incomplete: {error}"
        step = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or access_key_id and secret_access_key in the URL"
        return BucketRefusal(location.url, what, step)
    if "WRONG_VERSION_NUMBER" in str(error):
        plain = str(where).replace("https://", "http://", 1)
        raise Unavailable(f"{location.url}: the server at {where} speaks plain HTTP there: endpoint={plain}") from error
    raise Unavailable(f"{location.url}: no answer from {where} ({error}); is it up, is the URL right?") from error


def _ask(call: Callable[[], T], absent: T, *absent_codes: str) -> T | Unknown:
    """An answer, `absent` where the server says that nothing is set, or why there is none."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except ClientError as error:
        status, code = answer_of(error)
        if code in absent_codes:
            return absent
        if status in _NOT_IMPLEMENTED or code in ("NotImplemented", "MethodNotAllowed"):
            return Unknown(f"the server does not implement {error.operation_name}")
        if status in _DENIED:
            return Unknown(f"these credentials may not ask {error.operation_name}", is_denied=True)
        return Unknown(f"{error.operation_name} was answered with {status} {code}")
    except BotoCoreError as error:
        return Unknown(f"no answer: {error}")


def answer_of(error: Any) -> tuple[int, str]:
    """Status and code of a botocore ClientError."""
    answer = error.response
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)), str(answer.get("Error", {}).get("Code"))


# The four questions ---------------------------------------------------------------------------------------------------
def _lifecycle(client: S3Client, bucket: str) -> tuple[LifecycleRule, ...]:
    answer = client.get_bucket_lifecycle_configuration(Bucket=bucket)
    return tuple(_rule(number, rule) for number, rule in enumerate(answer.get("Rules", []), 1))


def _rule(number: int, rule: LifecycleRuleOutputTypeDef) -> LifecycleRule:
    scope = rule.get("Filter", {})
    both = scope.get("And", {})
    prefix = scope.get("Prefix") or both.get("Prefix") or rule.get("Prefix") or ""
    expiration = rule.get("Expiration", {})
    return LifecycleRule(
        name=rule.get("ID") or f"number {number}",
        is_enabled=rule.get("Status") == "Enabled",
        prefix=prefix,
        needs_tags=bool(scope.get("Tag") or both.get("Tags")),
        expires=_when(expiration) if "Days" in expiration or "Date" in expiration else None,
        moves=tuple(Move(str(move.get("StorageClass")), _when(move)) for move in rule.get("Transitions", [])),
        aborts_multipart="AbortIncompleteMultipartUpload" in rule,
        expires_old_versions="NoncurrentVersionExpiration" in rule,
    )


def _when(action: Mapping[str, Any]) -> str:
    if "Date" in action:
        return f"on {str(action['Date'])[:10]}"
    return f"after {counted(int(action.get('Days', 0)), 'day')}"


def _versioning(client: S3Client, bucket: str) -> Versioning:
    status = client.get_bucket_versioning(Bucket=bucket).get("Status")
    return {"Enabled": Versioning.ON, "Suspended": Versioning.SUSPENDED}.get(str(status), Versioning.OFF)


def _encryption(client: S3Client, bucket: str) -> str:
    rules = client.get_bucket_encryption(Bucket=bucket).get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    defaults = [rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in rules]
    named = [f"{d['SSEAlgorithm']} {d.get('KMSMasterKeyID', '')}".strip() for d in defaults if "SSEAlgorithm" in d]
    return ", ".join(named) or "none"


def _object_lock(client: S3Client, bucket: str) -> str:
    lock = client.get_object_lock_configuration(Bucket=bucket).get("ObjectLockConfiguration", {})
    if lock.get("ObjectLockEnabled") != "Enabled":
        return "off"
    retention = lock.get("Rule", {}).get("DefaultRetention", {})
    if not retention:
        return "on, without a default retention"
    years, days = int(retention.get("Years") or 0), int(retention.get("Days") or 0)
    long = counted(years, "year") if years else counted(days, "day")
    return f"on, {retention.get('Mode')} for {long}"
