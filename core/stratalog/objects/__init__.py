"""Object stores behind one interface: directory, S3, Google Cloud Storage, Azure Blob Storage, memory."""

from stratalog.objects.bucket_classes import BucketClasses, ClassedObject, Restore, RestoreTier, open_classes
from stratalog.objects.bucket_control import read_bucket_settings
from stratalog.objects.bucket_settings import BucketRefusal, BucketSettings, LifecycleRule, Move, Unknown, Versioning
from stratalog.objects.limits import TransferLimits
from stratalog.objects.opening import open_store
from stratalog.objects.settings import StoreSettings
from stratalog.objects.stats import FailureKind, Operation, OperationStats, StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo, ObjectStore

__all__ = [
    "BucketClasses",
    "BucketRefusal",
    "BucketSettings",
    "Capabilities",
    "ClassedObject",
    "FailureKind",
    "LifecycleRule",
    "Move",
    "ObjectInfo",
    "ObjectStore",
    "Operation",
    "OperationStats",
    "Restore",
    "RestoreTier",
    "StoreSettings",
    "StoreStats",
    "TransferLimits",
    "Unknown",
    "Versioning",
    "open_classes",
    "open_store",
    "read_bucket_settings",
]
