"""Kafka's error codes, and the code for each Stratalog error.

Invariant: a code that tells a client "nothing was done" is only given for errors that promise it (`Rejected`,
`Unavailable`); `OutcomeUnknown` becomes REQUEST_TIMED_OUT. Source: Kafka's `Errors.java`.
"""

from __future__ import annotations

from enum import IntEnum

from stratalog.model.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DiskFull,
    Fenced,
    Forbidden,
    InvalidRequest,
    LimitExceeded,
    NameCollides,
    NotFound,
    OutcomeUnknown,
    Rejected,
    Reserved,
    Unavailable,
)


class ErrorCode(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    MISMATCHED_ENDPOINT_TYPE = 114


_MEANING: tuple[tuple[type[Exception], ErrorCode], ...] = (
    # Subclasses before their parents: the first match wins.
    (NotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (AlreadyExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (NameCollides, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidRequest, ErrorCode.INVALID_REQUEST),
    # Admin clients refresh and try again on 41, which is what a lost compare-and-set asks for.
    (Conflict, ErrorCode.NOT_CONTROLLER),
    (Fenced, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (LimitExceeded, ErrorCode.MESSAGE_TOO_LARGE),
    (Forbidden, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    (Reserved, ErrorCode.POLICY_VIOLATION),
    (Rejected, ErrorCode.INVALID_REQUEST),
    (DiskFull, ErrorCode.KAFKA_STORAGE_ERROR),
    # Retriable, and never OFFSET_OUT_OF_RANGE, which makes consumers jump (trap 10).
    (Unavailable, ErrorCode.LEADER_NOT_AVAILABLE),
    (OutcomeUnknown, ErrorCode.REQUEST_TIMED_OUT),
    (Corrupt, ErrorCode.KAFKA_STORAGE_ERROR),
)


def code_of(error: BaseException) -> ErrorCode:
    """The code that tells a client what it can do about an error; UNKNOWN_SERVER_ERROR for what is not ours."""
    for kind, code in _MEANING:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
