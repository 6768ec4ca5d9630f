"""What a pass may do, as data. Imperatives; each says why, and what is deleted is named by its UID as well.

Plain immutable data. `apply/` does them: "not found" is success for whatever takes something away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from stratalog.model.ids import SegmentKey
from stratalog.model.quotas import QuotaChange, QuotaLimits
from stratalog.model.retirement import RetireMode
from stratalog.model.rights import Rule
from stratalog.model.scram import CredentialName
from stratalog_operator.resources.schema import Part
from stratalog_operator.resources.user import SecretKeyRef
from stratalog_operator.specs.objects import Manifest
from stratalog_operator.specs.user import SecretOwner


class AuthorityStep(Enum):
    """What becomes of the operator's own authority."""

    KEEP = "keep"
    MAKE = "make"
    """There is none yet."""
    ADD = "add"
    """The next one is trusted from now on."""
    SWITCH = "switch"
    """The next one issues from now on."""
    DROP = "drop"
    """Former ones are trusted no more: every pod was seen to show a certificate of the present one."""


class PasswordSource(Enum):
    """Which password a user is to have."""

    GENERATED = "generated"
    """Another one, made now."""
    GIVEN = "given"
    """The one that a person or another program chose."""
    KEPT = "kept"
    """The one in its Secret."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of all that is ours of an object."""

    manifest: Manifest
    why: str

    @property
    def key(self) -> tuple[str, str]:
        kind, metadata = self.manifest["kind"], self.manifest["metadata"]
        assert isinstance(kind, str) and isinstance(metadata, dict) and isinstance(metadata["name"], str)
        return kind, metadata["name"]


@dataclass(frozen=True, slots=True)
class MakeToken:
    """A Secret with a random token, unless it is there."""

    secret: str


@dataclass(frozen=True, slots=True)
class GuardClaim:
    """Our finalizer on the claim, and its volume's policy to Retain; what that was is noted on the claim."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class UnguardClaim:
    """The finalizer goes. The volume's policy becomes what it was, unless it is to be kept."""

    name: str
    uid: str
    keeps_volume: bool
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Labels the claim as released: no node uses it any more."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class NoteDisk:
    """On a claim: whose disk it is, once its node has registered with it."""

    name: str
    uid: str
    storage_id: str
    cluster_id: str


@dataclass(frozen=True, slots=True)
class NoteMember:
    """On a claim: the member of etcd whose log is on it."""

    name: str
    uid: str
    member_id: str


@dataclass(frozen=True, slots=True)
class AskRetire:
    """The wish, to the meta service. Asked again it is the same."""

    node_id: int
    mode: RetireMode
    force_storage_id: str | None = None
    """A person gives up what no other node has; the id is checked by the service."""
    force_absence: int | None = None
    """The absence of the node that the person decided about; checked by the service."""


@dataclass(frozen=True, slots=True)
class CancelRetire:
    node_id: int


@dataclass(frozen=True, slots=True)
class EndMount:
    """Asked of the meta service, which refuses while the mount is the only way to something."""

    mount: str


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    kind: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class DropDecision:
    """Remove the annotation by which a person decided something once: it is used up, or is about something else."""

    kind: str
    name: str
    uid: str
    annotation: str
    is_used: bool
    why: str


@dataclass(frozen=True, slots=True)
class StopPod:
    """It comes back by itself, as its StatefulSet says now."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class StopSet:
    """Its pod stops, and does not come back."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Deletes an object. Nothing depends on it except objects that are to be deleted with it."""

    kind: str
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class RemoveEtcdMember:
    """Its volume is lost, and most of the others serve: it never comes back under this id."""

    member_id: str
    why: str


@dataclass(frozen=True, slots=True)
class AddEtcdMember:
    """As a learner, without a vote: whatever becomes of it until it is promoted, the others decide without it."""

    number: int
    peer_url: str


@dataclass(frozen=True, slots=True)
class UpdateEtcdMember:
    """The others reach it under this URL from now on. It listens there already, and they have what it asks for."""

    member_id: str
    peer_url: str


@dataclass(frozen=True, slots=True)
class PromoteEtcdMember:
    """A learner that has caught up gets its vote; etcd refuses while it has not."""

    member_id: str


@dataclass(frozen=True, slots=True)
class MakeTopic:
    owner: str
    """The TopicStorage."""
    topic: str
    shards: int | None
    """None: as many as the processes' settings say."""
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChangeTopic:
    """Its settings as a whole, and its number of shards; only while it is as it was seen."""

    owner: str
    topic_id: UUID
    settings: Mapping[str, str]
    seen: Mapping[str, str]
    shards: int | None
    """None: as many as there are."""


@dataclass(frozen=True, slots=True)
class AskSeal:
    """Ends the segments of a topic that are being written, once for each request."""

    owner: str
    topic_id: UUID
    asked_ms: int
    """Names the request."""


@dataclass(frozen=True, slots=True)
class AskRolls:
    """Ends segments that are being written: their shards continue where nodes have less to do."""

    segments: tuple[SegmentKey, ...]


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    owner: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class MakeMount:
    """By hand: what is sealed of these topics, of that time; or what a snapshot has of them, or of all its topics."""

    owner: str
    """The ReadOnlyMount, and the name of the mount."""
    topics: tuple[str, ...]
    from_ms: int
    until_ms: int
    lasts_ms: int
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class MakeRules:
    """Of a user."""

    owner: str
    """The StorageUser."""
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class RemoveRules:
    """Of a user: these, and no others."""

    owner: str
    uid: str
    """Of the StorageUser."""
    rules: tuple[Rule, ...]
    is_reported: bool
    """The object has not changed: a person or another program made these rules."""


@dataclass(frozen=True, slots=True)
class PutQuotas:
    """Of a user: sets and removes limits in one transaction."""

    owner: str
    """The StorageUser."""
    uid: str
    user: str
    changes: tuple[QuotaChange, ...]
    seen: QuotaLimits
    """What the user had."""
    is_reported: bool
    """The object has not changed: a person or another program set these limits."""


@dataclass(frozen=True, slots=True)
class PutPassword:
    """Writes the Secret of a user where that is needed, and then has the cluster take the password that it has. Only
    while the Secret is as it was seen."""

    owner: SecretOwner
    source: PasswordSource
    secret_uid: str = ""
    """Empty: there is none."""
    secret_version: str = ""
    given: SecretKeyRef | None = None
    """Where a given password is."""
    word: str = ""
    """Of the annotation that asks for another password; noted with it."""


@dataclass(frozen=True, slots=True)
class PutCertificate:
    """Issues a certificate to a user, with another key, and writes both into its Secret. Only while that and the
    authority of clients are as they were seen."""

    owner: SecretOwner
    secret_uid: str
    """Empty: there is none."""
    secret_version: str
    authority_version: str
    word: str = ""
    """Of the annotation that asks for another certificate; noted with it."""


@dataclass(frozen=True, slots=True)
class RemoveCredentials:
    """Of a user: these passwords are refused from then on."""

    owner: str
    names: tuple[CredentialName, ...]


@dataclass(frozen=True, slots=True)
class RenewCertificates:
    """Writes the Secrets of the operator's own authority, what is trusted before what is shown. Only while they are as
    they were seen."""

    step: AuthorityStep
    issued: Mapping[str, frozenset[str]]
    """By the id of the node: the names of the certificate that it gets."""
    gone: tuple[str, ...]
    """Ids of nodes whose certificates are of no use any more."""
    versions: tuple[str, str, str]
    """Of the Secrets: of the authority, of the certificates, of what clients trust."""
    word: str = ""
    """Of the annotation that asks for another authority."""
    of_clients: tuple[AuthorityStep, str] | None = None
    """What becomes of the authority of clients, and the version of its Secret. None: there is none, or it stays as it
    is."""
    of_etcd: tuple[AuthorityStep, str] | None = None
    """The same of the authority of etcd."""


@dataclass(frozen=True, slots=True)
class PutRoles:
    """Writes the Secret with hashes of tokens. Only while it is as it was seen."""

    texts: Mapping[str, str] = field(repr=False)
    """By its keys."""
    version: str
    """Of the Secret; empty: it is not there."""


Disruptive: TypeAlias = StopPod | StopSet | DeleteClaim
"""Of these at most one in a pass, unless the cluster is going."""
Additive: TypeAlias = (
    Apply
    | MakeToken
    | GuardClaim
    | UnguardClaim
    | ReleaseClaim
    | NoteDisk
    | NoteMember
    | AskRetire
    | CancelRetire
    | EndMount
    | AddFinalizer
    | DropFinalizer
    | DropDecision
    | DeleteObject
    | RemoveEtcdMember
    | AddEtcdMember
    | UpdateEtcdMember
    | PromoteEtcdMember
    | MakeTopic
    | ChangeTopic
    | AskSeal
    | AskRolls
    | RemoveTopic
    | MakeMount
    | MakeRules
    | RemoveRules
    | PutQuotas
    | PutPassword
    | PutCertificate
    | RemoveCredentials
    | RenewCertificates
    | PutRoles
)
Action: TypeAlias = Additive | Disruptive


@dataclass(slots=True)
class Offer:
    """What one part would do. Of what is disruptive a pass does one thing at most: the first that can be done."""

    actions: list[Additive] = field(default_factory=list)
    disruptive: list[Disruptive] = field(default_factory=list)

    def add(self, other: Offer) -> None:
        self.actions += other.actions
        self.disruptive += other.disruptive


@dataclass(frozen=True, slots=True)
class Plan:
    """Of one pass: actions in their order, then the statuses whose meaning changed, by kind and name."""

    actions: tuple[Action, ...]
    statuses: dict[tuple[str, str], Part]
    again_seconds: int
    """When the next pass is due in any case."""
    instead: tuple[Disruptive, ...] = ()
    """What may be done in the place of the disruptive action if that is refused, or what it needs is; the first that
    can be."""
    faults: Mapping[tuple[str, str], Exception] = field(default_factory=dict)
    """Objects whose plan ended with an error, by kind and name: nothing is done about them."""
