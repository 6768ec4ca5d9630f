"""Object stores behind one seam: directory, S3, memory."""

from stratalog.objects.limits import TransferLimits
from stratalog.objects.opening import open_store
from stratalog.objects.settings import StoreSettings
from stratalog.objects.stats import FailureKind, Operation, OperationStats, StoreStats
from stratalog.objects.store import Capabilities, ObjectInfo, ObjectStore

__all__ = [
    "Capabilities",
    "FailureKind",
    "ObjectInfo",
    "ObjectStore",
    "Operation",
    "OperationStats",
    "StoreSettings",
    "StoreStats",
    "TransferLimits",
    "open_store",
]
