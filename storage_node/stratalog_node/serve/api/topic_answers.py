"""What answers about creating and changing topics have in common: which code an error becomes, and how long to wait.

The meta service has done a thing when its call returns; a client's timeout only bounds the wait until this node's
catalog shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from datetime import timedelta
from typing import TypeVar

from stratalog.kafka.error_codes import ErrorCode, code_of
from stratalog.kafka.messages import milliseconds
from stratalog.model.errors import LimitExceeded, Rejected, StratalogError

NO_RIGHT = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}
"""What a client without a right hears, in Kafka's words."""
LONGEST_WAIT_MS = 5_000
LONGEST_MESSAGE = 2_000

Name = TypeVar("Name", bound=Hashable)


class TopicRefused(Rejected):
    """A request of a topic's is refused with a code that no general error stands for."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def no_right(code: ErrorCode) -> TopicRefused:
    return TopicRefused(code, NO_RIGHT[code])


def answer_to(error: StratalogError) -> tuple[ErrorCode, str]:
    """The code and the sentence for a failed change; a sentence that quotes a long value is cut, for old strings end
    at 32 KiB."""
    match error:
        case TopicRefused():
            code = error.code
        case LimitExceeded():
            code = ErrorCode.POLICY_VIOLATION
        case _:
            code = code_of(error)
    return code, str(error)[:LONGEST_MESSAGE]


def wait_ms(timeout: timedelta) -> int:
    """How long to wait for the catalog, from what the client is ready to wait."""
    return min(max(milliseconds(timeout), 0), LONGEST_WAIT_MS)


def repeated(names: Iterable[Name]) -> set[Name]:
    """Names that a request brings more than once: each of them is refused, for which one counts is unclear."""
    return {name for name, count in Counter(names).items() if count > 1}


def named_twice(name: str | None) -> TopicRefused:
    return TopicRefused(ErrorCode.INVALID_REQUEST, f"{name} is named more than once in one request: send it once")
