"""What is known of the users of one cluster from pass to pass, so that a pass over thousands of them costs little.

An object is parsed again once it has changed. A Secret is read when its StorageUser has changed or something was done
about it, when another password is due, and otherwise in turn: a few in each pass, for the operator may not list or
watch Secrets. A user for which a pass found nothing to do is not planned again until something that it rests on has
changed. Nothing but this pace rests on it: it may be lost at any time.

Passwords are read and compared here, and never kept. Lives in the operator's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stratalog.model.errors import InvalidRequest, NotFound, StratalogError
from stratalog.telemetry.logs import logger
from stratalog_operator.kube.certificate_files import (
    fingerprint,
    is_issued_by,
    is_key_of,
    read_certificate,
    subject_of,
)
from stratalog_operator.kube.client import Kubernetes, path_of
from stratalog_operator.kube.secret_texts import read_given, text_of
from stratalog_operator.observe import parse
from stratalog_operator.plan.actions import Plan
from stratalog_operator.plan.declared.users import USER, owners_of_users, principal_held
from stratalog_operator.plan.deletion import is_going
from stratalog_operator.plan.failures import subject_of as subject_of_action
from stratalog_operator.plan.faults import where_fault
from stratalog_operator.plan.observed import Observed, SeenUser, SeenUserCertificate, SeenUserSecret, Unread
from stratalog_operator.plan.scope import is_paused, why_no_time
from stratalog_operator.resources.names import ANNOTATION_ROTATED_AT, ANNOTATION_ROTATED_FOR
from stratalog_operator.resources.user import StorageUserSpec, StorageUserStatus
from stratalog_operator.specs.user import (
    CERTIFICATE,
    JAAS,
    KEY,
    PASSWORD,
    has_certificate,
    has_secret,
    jaas_config,
    user_name,
)

MOST_READ: Final = 50
"""Secrets in a pass."""
IN_TURN: Final = 20
"""Of these, such as are read only because they have not been for the longest time."""
_AT_ONCE: Final = 8

_log = logger(__name__)


@dataclass(slots=True)
class _Known:
    parsed: SeenUser | Unread
    version: str
    """The resourceVersion of the object."""
    secret: SeenUserSecret | None = None
    read_at: int = 0
    """By the number of the pass."""
    is_to_be_read: bool = True
    settled: object = None
    """All that its plan rested on when there was nothing to do."""


class KnownUsers:
    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        """By the UID of the StorageUser."""
        self._pass = 0
        self.left = 0
        """Secrets that have not been read yet, and are in a later pass."""

    def parse(self, found: Iterable[Mapping[str, Any]]) -> tuple[tuple[SeenUser, ...], list[Unread]]:
        """All StorageUsers of the cluster. Whatever is not among them is forgotten."""
        self._pass += 1
        before, self._known = self._known, {}
        for one in found:
            uid, version = one["metadata"]["uid"], str(one["metadata"].get("resourceVersion", ""))
            known = before.get(uid)
            if known is None or known.version != version or not version:
                known = _Known(_parsed(one), version, None if known is None else known.secret)
            self._known[uid] = known
        read = tuple(one.parsed for one in self._known.values() if not isinstance(one.parsed, Unread))
        return read, [one.parsed for one in self._known.values() if isinstance(one.parsed, Unread)]

    async def read_secrets(self, kubernetes: Kubernetes, seen: Observed) -> dict[str, SeenUserSecret]:
        """What is known of the Secrets of these users, some of them read now. One that cannot be read stays as it was
        known, and is read again."""
        if is_going(seen):
            return {}
        first = owners_of_users(seen)
        users = [
            one
            for one in seen.users
            if has_secret(one.spec) and not one.is_deleting and first[user_name(one.spec, one.name)] is one
        ]
        due = sorted((one for one in users if self._is_due(one, seen.now)), key=self._order)
        chosen = due[:MOST_READ]
        self.left = sum(self._known[one.uid].secret is None for one in due[MOST_READ:])
        if len(chosen) < IN_TURN:
            named = {one.name for one in chosen}
            chosen += sorted((one for one in users if one.name not in named), key=self._order)[: IN_TURN - len(chosen)]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def read(one: SeenUser) -> None:
            known = self._known[one.uid]
            try:
                async with slots:
                    secret = await read_secret(kubernetes, seen.namespace, one, _issuer(seen))
            except StratalogError as error:
                known.read_at = self._pass  # others have their turn before it is asked for again
                _log.warning("a user's Secret could not be read", user=f"{seen.namespace}/{one.name}", error=str(error))
                return
            except Exception as error:  # a Secret that uncovers a fault must not end the pass over all others
                known.read_at = self._pass
                _log.error("a user's Secret ended a read", user=f"{seen.namespace}/{one.name}", **where_fault(error))
                return
            known.secret, known.read_at, known.is_to_be_read = secret, self._pass, False

        async with asyncio.TaskGroup() as reading:
            for one in chosen:
                reading.create_task(read(one))
        found = ((one.name, self._known[one.uid].secret) for one in users)
        return {name: secret for name, secret in found if secret is not None}

    def _order(self, one: SeenUser) -> tuple[int, str]:
        """Those first that were not read for the longest time."""
        return self._known[one.uid].read_at, one.name

    def _is_due(self, one: SeenUser, now: str) -> bool:
        known = self._known[one.uid]
        return known.is_to_be_read or (one.status.rotates_at is not None and one.status.rotates_at <= now)

    # What has to be planned -------------------------------------------------------------------------------------------
    def settled(self, seen: Observed) -> frozenset[str]:
        first = owners_of_users(seen)
        return frozenset(one.name for one in seen.users if self._known[one.uid].settled == _rests_on(seen, one, first))

    def note(self, seen: Observed, made: Plan) -> None:
        """After a pass: notes the users without anything to do, and those whose Secrets may have changed."""
        acted = {name for kind, name in map(subject_of_action, made.actions) if kind == USER}
        told = {name for kind, name in made.statuses if kind == USER}
        first = owners_of_users(seen)
        for one in seen.users:
            known = self._known.get(one.uid)
            if known is None:
                continue  # what is being deleted was looked at without this
            if one.name in acted:
                known.is_to_be_read = True
            if one.name in acted or one.name in told:
                known.settled = None
            elif one.name not in seen.settled_users:
                known.settled = _rests_on(seen, one, first)


def _rests_on(seen: Observed, one: SeenUser, first: Mapping[str, SeenUser | Unread]) -> object:
    """What the plan of a user rests on, but for the time: that makes its Secret be read."""
    rights = None if seen.meta is None else seen.meta.rights
    user = user_name(one.spec, one.name)
    kept = None
    if rights is not None:
        quotas = None if rights.quotas is None else rights.quotas.get(one.status.quotas_of)
        kept = (rights.credentials.get(user), rights.rules.get(principal_held(one)), quotas, rights.quotas is None)
    is_due = one.status.rotates_at is not None and one.status.rotates_at <= seen.now
    about = (one.resource_version, seen.user_secrets.get(one.name), first[user].uid, is_due)
    certificates = seen.certificates if has_certificate(one.spec) else None
    of_clients = (
        None if certificates is None else (certificates.clients, certificates.is_published, certificates.trouble)
    )
    certain = (seen.meta is None, is_paused(seen), bool(why_no_time(seen)))
    return (*about, kept, *certain, seen.cluster.generation, of_clients)


def _issuer(seen: Observed) -> str:
    """The present authority of clients, as PEM; empty: none."""
    clients = None if seen.certificates is None else seen.certificates.clients
    return "" if clients is None or clients.issuer is None else clients.issuer.pem


def _parsed(one: Mapping[str, Any]) -> SeenUser | Unread:
    try:
        return parse.seen(USER, one, StorageUserSpec, StorageUserStatus)
    except parse.Unreadable as error:
        return error.about


# A Secret -------------------------------------------------------------------------------------------------------------
async def read_secret(kubernetes: Kubernetes, namespace: str, one: SeenUser, issuer: str = "") -> SeenUserSecret:
    """Two requests at most. `issuer`: the present authority of clients. Raises: Unavailable."""
    authentication = one.spec.authentication
    password = None if authentication is None else authentication.password
    given, trouble = None, ""
    if password is not None:
        try:
            given = await read_given(kubernetes, namespace, password.value_from.secret_key_ref, one.name)
        except InvalidRequest as error:
            trouble = str(error)
    try:
        there = await kubernetes.ask("GET", path_of("Secret", namespace, one.name))
    except NotFound:
        return SeenUserSecret(is_given=False, given_trouble=trouble)
    metadata = there["metadata"]
    notes = metadata.get("annotations") or {}
    kept = text_of(there, PASSWORD)
    user = user_name(one.spec, one.name)
    return SeenUserSecret(
        metadata["uid"],
        metadata["resourceVersion"],
        is_ours=any(owner.get("uid") == one.uid for owner in metadata.get("ownerReferences") or ()),
        has_password=bool(kept),
        is_whole=kept is not None and text_of(there, JAAS) == jaas_config(user, kept),
        rotated_at=notes.get(ANNOTATION_ROTATED_AT, ""),
        rotated_for=notes.get(ANNOTATION_ROTATED_FOR, ""),
        is_given=given is None or given == kept,
        given_trouble=trouble,
        certificate=seen_certificate(text_of(there, CERTIFICATE), text_of(there, KEY), issuer),
    )


def seen_certificate(certificate: str | None, key: str | None, issuer: str) -> SeenUserCertificate | None:
    """None for one that cannot be read, or whose key is another one's."""
    try:
        found = None if certificate is None else read_certificate(certificate)
    except ValueError:
        return None
    if found is None or key is None or not is_key_of(key, found):
        return None
    authority = read_certificate(issuer) if issuer else None
    by = fingerprint(authority) if authority is not None and is_issued_by(found, authority) else ""
    ends, begins = (
        time.strftime("%Y-%m-%dT%H:%M:%SZ") for time in (found.not_valid_after_utc, found.not_valid_before_utc)
    )
    return SeenUserCertificate(by, subject_of(found), ends, begins)
