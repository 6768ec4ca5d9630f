"""What obstore's errors mean for the caller.

obstore raises few classes and puts the rest into their text, so the status code and the transport's own word are read
from there; `tests/stores/test_store_errors.py` holds this page against real answers. The rule for a put: only an
answer that proves that nothing was written is `Unavailable`; everything else is `OutcomeUnknown` (F46, F49).
For a read: a body that is not what its own answer says was spoiled on its way, and is `Unavailable`. `Corrupt` is only
what the store says of the object itself: that it ends before the range.
"""

from __future__ import annotations

import html
import re

import obstore.exceptions

from stratalog.model.errors import (
    AlreadyExists,
    Archived,
    Corrupt,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StratalogError,
    Unavailable,
)
from stratalog.objects.archived import ARCHIVED_CODES, ArchiveState, archived
from stratalog.objects.calls import Failure
from stratalog.objects.stats import FailureKind, Operation

_STATUS = re.compile(r"status code: (\d{3})")
_SERVER_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_TRANSPORT = re.compile(r"kind: (Connect|Timeout|Request|Interrupted|Decode|Unknown)\b")
_SERVER_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_SERVER_REGION = re.compile(r"<Region>([a-z0-9-]{1,64})</Region>")
_WRONG_REGION = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect")
_NO_SUCH_OBJECT = ("NoSuchKey", "NoSuchVersion", "BlobNotFound")
"""A 404 without one of these says nothing of the object: the bucket may be missing, or the server speaks another
protocol. The answer to a HEAD has no body, so `ObstoreStore.head` asks once more by a GET."""
_DELETE_FAILED = re.compile(r"Bulk delete request failed for key \S+: (.*) \(code: (\d{3})\)")
_BLOB_MISSING = "The specified blob does not exist."
"""What Azure says of one blob of a batch: status and reason, without a code. That of a missing container differs."""
_EXISTS = "BlobAlreadyExists"
"""Azure answers a conditional create with 409 and this code; other 409s prove nothing."""
_WRONG_CLASS = "InvalidStorageClass"
_FIRST_LINE_CHARS = 300
_ASKED = re.compile(r"Error performing [A-Z]+ (https?://[^/?\s]+)(\S*) in ")
_CREDENTIALS_HOST = re.compile(r"https?://(169\.254\.|\[fd00:ec2::|sts\.)")
_CREDENTIALS_PATH = ("/latest/api/token", "/latest/meta-data/")
_TOKEN_REQUEST = "Error performing token request"
"""Of Google and Azure, whatever the address is."""
_NO_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
    "gs": "no key file of a service account is given (GOOGLE_APPLICATION_CREDENTIALS)",
    "az": "AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_KEY are not set",
}

_SLOW_DOWN = (429, 503)
_DENIED = (401, 403)
_NOT_ALLOWED_HERE = (405, 501)
_WRONG_RANGE = (
    "Received non-partial response",
    "Failed to parse content range",
    "Content-Range header not present",
)
_STARTS_BEHIND = "Wanted range starting at"
_RANGE_OF_NOTHING = re.compile(r'"bytes \S+/0"')
"""The Content-Range with which Azurite answers instead of 416."""
_OTHER_RANGE = re.compile(r"Requested \d+\.\.\d+, got \d+\.\.\d+")


class WrongBody(Exception):
    """A body that is shorter or longer than its own answer says: it was spoiled on its way."""


def classify(error: Exception, operation: Operation, where: str) -> Failure:
    """The failure behind an exception of obstore, or the exception itself when it is none of obstore's."""
    if isinstance(error, WrongBody):
        return _spoiled(str(error), f"{operation} {where}")
    if isinstance(error, Corrupt):
        return Failure(FailureKind.WRONG_BODY, error, is_retriable=True)
    if isinstance(error, Archived):
        return Failure(FailureKind.ARCHIVED, error, is_retriable=False)
    if isinstance(error, StratalogError):
        return Failure(FailureKind.OTHER, error, is_retriable=False)
    if not isinstance(error, (obstore.exceptions.BaseError, OSError)):
        raise error
    text = str(error)
    what = f"{operation} {where}"
    if asked := _asked_for_credentials(text):
        return _no_credentials(text, asked, what, where)
    if found := _STATUS.search(text) or _DELETE_FAILED.search(text):
        return _from_status(int(found[found.lastindex or 1]), text, operation, what)
    if isinstance(error, FileNotFoundError):
        return _not_found(what)
    if isinstance(error, obstore.exceptions.AlreadyExistsError):
        return _already_exists(what)
    if _STARTS_BEHIND in text:
        corrupt = Corrupt(f"the object ends before the range: {first_line(text)}", source=where, position=0)
        return Failure(FailureKind.WRONG_BODY, corrupt, is_retriable=True)
    if _OTHER_RANGE.search(text) or any(words in text for words in _WRONG_RANGE):
        return _spoiled(f"the store answered another range: {first_line(text)}", what)
    return _from_transport(text, operation, what)


def _asked_for_credentials(text: str) -> str | None:
    """Where credentials were asked for, if that is what failed: the machine's or the pod's own service for them."""
    found = _ASKED.search(text)
    if found is None:
        return None
    is_asking = _CREDENTIALS_HOST.match(found[1]) or found[2].startswith(_CREDENTIALS_PATH) or _TOKEN_REQUEST in text
    return found[1] if is_asking else None


def _no_credentials(text: str, asked: str, what: str, where: str) -> Failure:
    """The store was not asked, so nothing was done."""
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    how = f"answered {status}" if status else "does not answer"
    error = Unavailable(
        f"{what}: no credentials for the store: {_NO_KEYS[where.partition('://')[0]]}, and the service for credentials "
        f"at {asked} {how}"
    )
    return Failure(FailureKind.DENIED, error, is_retriable=not 400 <= status < 500)


def _from_status(status: int, text: str, operation: Operation, what: str) -> Failure:
    code = found[1] if (found := _SERVER_CODE.search(text)) else ""
    answer = f"the store answered {status} {code}".rstrip()
    if status == 404 and (operation is Operation.HEAD or (operation is Operation.GET and code in _NO_SUCH_OBJECT)):
        return _not_found(what)
    if operation is Operation.PUT and (status == 412 or (status == 409 and code == _EXISTS)):
        return _already_exists(what)
    if status == 409 and operation is Operation.PUT:
        # A racing conditional put: S3 asks to look again. It may be our own earlier attempt (F46).
        error: StratalogError = OutcomeUnknown(f"{what}: {answer}; another put of this name is or was under way")
        return Failure(FailureKind.CONFLICT, error, is_retriable=False)
    if status in _SLOW_DOWN:
        return Failure(FailureKind.SLOW_DOWN, Unavailable(f"{what}: {answer}; back off"), is_retriable=True)
    if code in ARCHIVED_CODES:
        # It is there, in a class that is not read at once: a rule of the bucket moved it.
        return Failure(FailureKind.ARCHIVED, archived(what, answer), is_retriable=False)
    if status in _DENIED or status == 404:
        # Keys get rotated and buckets restored: not the caller's fault, and never taken for "no such object".
        denied, missing = "check the credentials and the bucket's policy", "check the bucket's name and the endpoint"
        hint = denied if status in _DENIED else missing
        return Failure(FailureKind.DENIED, Unavailable(f"{what}: {answer}; {hint}"), is_retriable=False)
    if status == 416:
        corrupt = Corrupt(f"{answer}: the object ends before the range", source=what, position=0)
        return Failure(FailureKind.WRONG_BODY, corrupt, is_retriable=True)
    if status in _NOT_ALLOWED_HERE:
        refused = InvalidRequest(f"{what}: {answer}; the store cannot do this: use one with conditional puts")
        return Failure(FailureKind.REJECTED, refused, is_retriable=False)
    if status >= 500 or status in (408, 409, 412):
        if operation is Operation.PUT:
            error = OutcomeUnknown(f"{what}: {answer}; it may yet appear: write again under a new name")
        else:
            error = Unavailable(f"{what}: {answer}; try later")
        return Failure(FailureKind.SERVER_ERROR, error, is_retriable=True)
    why = html.unescape(found[1]) if (found := _SERVER_MESSAGE.search(text)) else first_line(text)
    if code in _WRONG_REGION:
        region = found[1] if (found := _SERVER_REGION.search(text)) else "REGION"
        why += f"; give the bucket's region: region={region} in the URL, or AWS_REGION"
    if code == _WRONG_CLASS:
        why += "; set remote.storage.class to a class that this server has, or to STANDARD for the bucket's default"
    return Failure(FailureKind.REJECTED, InvalidRequest(f"{what}: {answer}: {why}"), is_retriable=False)


def _from_transport(text: str, operation: Operation, what: str) -> Failure:
    word = found[1] if (found := _TRANSPORT.search(text)) else "Unknown"
    if word == "Connect":
        at = found[1] if (found := _ASKED.search(text)) else "the store"
        words = f"not reachable: no connection to {at}; is it up, is this its address?"
        return Failure(FailureKind.REFUSED, Unavailable(f"{what}: {words}"), True)
    kind = {"Timeout": FailureKind.TIMEOUT, "Unknown": FailureKind.OTHER}.get(word, FailureKind.CUT)
    detail = first_line(text)
    if operation is Operation.PUT:
        unknown = OutcomeUnknown(f"{what}: the answer was lost ({detail}); write again under a new name")
        return Failure(kind, unknown, is_retriable=False)
    return Failure(kind, Unavailable(f"{what}: the answer was cut ({detail}); try later"), is_retriable=True)


def _not_found(what: str) -> Failure:
    return Failure(FailureKind.NOT_FOUND, NotFound(f"{what}: no such object"), is_retriable=False)


def _already_exists(what: str) -> Failure:
    exists = AlreadyExists(f"{what}: the object exists; it may be an earlier attempt of this writer: read it back")
    return Failure(FailureKind.ALREADY_EXISTS, exists, is_retriable=False)


def _spoiled(how: str, what: str) -> Failure:
    error = Unavailable(f"{what}: {how}; the store, or something in front of it, spoils its answers; try later")
    return Failure(FailureKind.WRONG_BODY, error, is_retriable=True)


def is_archived(error: Exception) -> bool:
    """Whether the store has the object and does not give it, because of its storage class."""
    found = _SERVER_CODE.search(str(error))
    return found is not None and found[1] in ARCHIVED_CODES


def archived_with(error: Exception, operation: Operation, where: str, state: ArchiveState) -> Archived:
    """Of an error that `is_archived`, with what a HEAD said."""
    text = str(error)
    status, code = _STATUS.search(text), _SERVER_CODE.search(text)
    answer = " ".join(found[1] for found in (status, code) if found is not None)
    return archived(f"{operation} {where}", f"the store answered {answer}", state)


def is_missing_object(error: Exception) -> bool:
    """Whether the store itself says that an object is not there, and not its bucket."""
    text = str(error)
    if found := _DELETE_FAILED.search(text):
        return found[1] == _BLOB_MISSING and found[2] == "404"
    status, code = _STATUS.search(text), _SERVER_CODE.search(text)
    return status is not None and status[1] == "404" and code is not None and code[1] in _NO_SUCH_OBJECT


def is_empty_range(error: Exception) -> bool:
    """Whether an answer says that there is nothing where a range begins: of an empty object, from its start."""
    text = str(error)
    found = _STATUS.search(text)
    if found is not None:
        return found[1] == "416"
    return _STARTS_BEHIND in text or _RANGE_OF_NOTHING.search(text) is not None


def first_line(error: Exception | str) -> str:
    """Of what obstore says; behind it are its internals."""
    return str(error).split("\n", 1)[0][:_FIRST_LINE_CHARS]
